"""The first article of the Universal Declaration of Human Rights in many languages, by ISO 639 code (public domain)."""

ARTICLE_1 = {
    "en": (
        "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
        "conscience and should act towards one another in a spirit of brotherhood."
    ),
    "de": (
        "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen "
        "begabt und sollen einander im Geiste der Brüderlichkeit begegnen."
    ),
    "fr": (
        "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et"
        " de conscience et doivent agir les uns envers les autres dans un esprit de fraternité."
    ),
    "es": (
        "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón"
        " y conciencia, deben comportarse fraternalmente los unos con los otros."
    ),
    "it": (
        "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e "
        "di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza."
    ),
    "pt": (
        "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de "
        "consciência, devem agir uns para com os outros em espírito de fraternidade."
    ),
    "nl": (
        "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd met verstand"
        " en geweten, en behoren zich jegens elkander in een geest van broederschap te gedragen."
    ),
    "sv": (
        "Alla människor är födda fria och lika i värde och rättigheter. De har utrustats med förnuft och "
        "samvete och bör handla gentemot varandra i en anda av gemenskap."
    ),
    "da": (
        "Alle mennesker er født frie og lige i værdighed og rettigheder. De er udstyret med fornuft og "
        "samvittighed, og de bør handle mod hverandre i en broderskabets ånd."
    ),
    "no": (
        "Alle mennesker er født frie og med samme menneskeverd og menneskerettigheter. De er utstyrt med "
        "fornuft og samvittighet og bør handle mot hverandre i brorskapets ånd."
    ),
    "af": (
        "Alle menslike wesens word vry, met gelyke waardigheid en regte, gebore. Hulle het rede en gewete en "
        "behoort in die gees van broederskap teenoor mekaar op te tree."
    ),
    "ca": (
        "Tots els éssers humans neixen lliures i iguals en dignitat i en drets. Són dotats de raó i de "
        "consciència, i els cal mantenir-se entre ells amb esperit de fraternitat."
    ),
    "cs": (
        "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem a svědomím "
        "a mají spolu jednat v duchu bratrství."
    ),
    "cy": (
        "Genir pawb yn rhydd ac yn gydradd â'i gilydd mewn urddas a hawliau. Fe'u cynysgaeddir â rheswm a "
        "chydwybod, a dylai pawb ymddwyn y naill at y llall mewn ysbryd cymodlon."
    ),
    "eo": (
        "Ĉiuj homoj estas denaske liberaj kaj egalaj laŭ digno kaj rajtoj. Ili posedas racion kaj "
        "konsciencon, kaj devus konduti unu al alia en spirito de frateco."
    ),
    "et": (
        "Kõik inimesed sünnivad vabadena ja võrdsetena oma väärikuselt ja õigustelt. Neile on antud mõistus "
        "ja südametunnistus ja nende suhtumist üksteisesse peab kandma vendluse vaim."
    ),
    "eu": (
        "Gizon-emakume guztiak aske jaiotzen dira, duintasun eta eskubide berberak dituztela; eta ezaguera "
        "eta kontzientzia dutenez gero, elkarren artean senide legez jokatu beharra dute."
    ),
    "fi": (
        "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan. Heille on annettu "
        "järki ja omatunto, ja heidän on toimittava toisiaan kohtaan veljeyden hengessä."
    ),
    "ga": (
        "Saolaítear na daoine uile saor agus comhionann ina ndínit agus ina gcearta. Tá bua an réasúin agus "
        "an choinsiasa acu agus dlíd gníomhú i dtreo a chéile i spiorad an bhráithreachais."
    ),
    "gl": (
        "Tódolos seres humanos nacen libres e iguais en dignidade e dereitos e, dotados como están de razón e"
        " conciencia, débense comportar fraternalmente uns cos outros."
    ),
    "hr": (
        "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima. Ona su obdarena razumom i "
        "sviješću i trebaju jedna prema drugima postupati u duhu bratstva."
    ),
    "hu": (
        "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Az emberek, ésszel és "
        "lelkiismerettel bírván, egymással szemben testvéri szellemben kell hogy viseltessenek."
    ),
    "id": (
        "Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama. Mereka dikaruniai akal "
        "dan hati nurani dan hendaknya bergaul satu sama lain dalam semangat persaudaraan."
    ),
    "is": (
        "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum. Menn eru gæddir vitsmunum og "
        "samvisku, og ber þeim að breyta bróðurlega hverjum við annan."
    ),
    "la": (
        "Omnes homines liberi aequique dignitate atque iuribus nascuntur. Ratione conscientiaque praediti "
        "sunt et alii erga alios cum fraternitate se gerere debent."
    ),
    "lt": (
        "Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis. Jiems suteiktas protas ir sąžinė ir jie "
        "turi elgtis vienas kito atžvilgiu kaip broliai."
    ),
    "lv": (
        "Visi cilvēki piedzimst brīvi un vienlīdzīgi savā pašcieņā un tiesībās. Viņi ir apveltīti ar saprātu "
        "un sirdsapziņu, un viņiem jāizturas citam pret citu brālības garā."
    ),
    "mt": (
        "Il-bnedmin kollha jitwieldu ħielsa u ugwali fid-dinjità u d-drittijiet. Huma mogħnija bir-raġuni u "
        "bil-kuxjenza u għandhom iġibu ruħhom ma' xulxin bi spirtu ta' aħwa."
    ),
    "pl": (
        "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni "
        "rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa."
    ),
    "ro": (
        "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. Ele sunt înzestrate cu "
        "rațiune și conștiință și trebuie să se comporte unele față de altele în spiritul fraternității."
    ),
    "sk": (
        "Všetci ľudia sa rodia slobodní a sebe rovní, čo sa týka ich dôstojnosti a práv. Sú obdarení rozumom "
        "a majú navzájom jednať v bratskom duchu."
    ),
    "sl": (
        "Vsi ljudje se rodijo svobodni in imajo enako dostojanstvo in enake pravice. Obdarjeni so z razumom "
        "in vestjo in bi morali ravnati drug z drugim kakor bratje."
    ),
    "sq": (
        "Të gjithë njerëzit lindin të lirë dhe të barabartë në dinjitet dhe në të drejta. Ata kanë arsye dhe "
        "ndërgjegje dhe duhet të sillen ndaj njëri tjetrit me frymë vëllazërimi."
    ),
    "sw": (
        "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa. Wote wamejaliwa akili na dhamiri, hivyo yapasa"
        " watendeane kindugu."
    ),
    "tl": (
        "Ang lahat ng tao'y isinilang na malaya at pantay-pantay sa karangalan at mga karapatan. Sila'y "
        "pinagkalooban ng katwiran at budhi at dapat magpalagayan ang isa't isa sa diwa ng pagkakapatiran."
    ),
    "tr": (
        "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve "
        "birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler."
    ),
    "vi": (
        "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều được "
        "tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu."
    ),
    "ru": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и "
        "совестью и должны поступать в отношении друг друга в духе братства."
    ),
    "uk": (
        "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і совістю"
        " і повинні діяти у відношенні один до одного в дусі братерства."
    ),
    "el": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι "
        "προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα "
        "αδελφοσύνης."
    ),
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ar": (
        "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم "
        "بعضاً بروح الإخاء."
    ),
    "fa": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "ka": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "hy": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
}
