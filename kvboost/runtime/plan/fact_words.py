"""Words that carry facts, by language, and the commonest words, by which a language is known.

A language has a table here if it is written in Latin letters and its numerals are hardly inflected; of all others
(see :data:`OTHERS`) only the commonest words are listed, so that none is taken for a language with a table.
``tests/runtime/test_facts_languages.py`` holds the tables to ``num2words`` (numbers in words) and to CLDR's months and
weekdays.

A table errs towards too many words: ``zwei*`` stands for ``zweiter`` and ``zweihundert``, and for ``zweifeln`` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class Language:
    """What is known of a language.

    Attributes
    ----------
    common
        Articles, pronouns, prepositions: what a text in this language cannot do without.
    facts
        Matches a word, in lower case, that counts, measures, dates, quantifies or negates; None without a table.
    """

    common: frozenset[str]
    facts: re.Pattern[str] | None = None


def _language(common: str, facts: str = "") -> Language:
    """Return the language; ``*`` at the end of a fact stands for any ending, at its beginning for any first part."""
    words = [re.escape(word).replace(r"\*", r"\w*") for word in facts.split()]
    return Language(frozenset(common.split()), re.compile("|".join(words)) if words else None)


_ENGLISH_FACTS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fourty fifty sixty seventy eighty ninety hundred* thousand* million*
    billion* trillion* *teenth *tieth dozen* score first second* third* fourth* fifth* sixth* seventh* eighth* ninth*
    tenth* eleventh* twelfth* half halves quarter* double* triple* quadruple* twice thrice once single pair both all
    most many few several some any every each more less fewer only percent* either
    january february march april may june july august september october november december jan feb mar apr jun jul aug
    sep sept oct nov dec monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri
    sat sun today tomorrow yesterday tonight noon midnight am pm bc ad bce ce spring summer autumn fall winter
    mm cm m km mg g kg lb lbs oz ft mi t ml l s ms us ns min h hr hrs b kb mb gb tb kib mib gib tib hz khz mhz ghz
    v mv kv w kw mw gw inch inches foot feet yard yards mile miles meter meters metre metres kilometer kilometers
    kilometre kilometres gram grams kilogram kilograms pound pounds ounce ounces ton tons tonne tonnes liter liters
    litre litres gallon gallons minute minutes hour hours day days week weeks month months year years
    decade decades century centuries dollar dollars euro euros yen yuan rupee rupees cent cents celsius fahrenheit
    kelvin
    no not none never neither nor nothing nobody nowhere without cannot cant wont dont doesnt didnt isnt arent wasnt
    werent hasnt havent hadnt shouldnt wouldnt couldnt mustnt aint hardly scarcely barely rarely seldom except unless
    fail fails failed lack lacks lacked deny denies denied refuse refuses refused false
"""

LANGUAGES: Mapping[str, Language] = {
    "en": _language(
        """a an the this that these those it its he she we you they his her our your their my me him them us who whom
        which what when where why how and or but so if then than as at by for from in into of on to with about after
        before between during through over under up down out off since until while although though because there is
        are was were be been being am do does did have has had can could shall should will would might must here
        also again however therefore thus hence moreover furthermore above below please let yet""",
        _ENGLISH_FACTS,
    ),
    "de": _language(
        """der die das den dem des ein eine einen einem einer eines und oder aber ist sind war waren wird werden wurde
        hat haben sich auf für mit von zu zum zur im am bei aus nach über als wie auch daß dass sie er es wir ihr
        ich ihre seine in an durch nur noch dieser diese dieses""",
        """null ein* zwei* zwo* drei* dritt* vier* fünf* sechs* sechz* sieb* acht* neun* zehn* elf* zwölf* *zehn* *zig*
        *ßig* hundert* tausend* *hundert* *tausend* million* milliard* halb* hälfte* *tel* dutzend* erst* einzig*
        einmal doppel* *mal *fach* beide* alle* viel* wenig* mehr* meist* manche* einige* jede* nur prozent* januar*
        februar* märz* april* mai juni juli august* september* oktober* november* dezember* montag* dienstag*
        mittwoch* donnerstag* freitag* samstag* sonnabend* sonntag* heute gestern morgen* vorgestern übermorgen
        mittag* mitternacht* früh* sommer* herbst* winter* *meter* *gramm* *liter* sekunde* minute* stunde* tag*
        woche* monat* jahr* nicht* kein* nie niemals niemand* nirgend* ohne weder noch kaum selten außer falsch*
        verweiger* fehl*""",
    ),
    "fr": _language(
        """le la les l un une des du de d et ou mais est sont était étaient être a ont avait dans en par pour sur avec
        au aux ce cette ces qui que qu il elle ils elles nous vous je on se s son sa ses leur leurs n y plus comme""",
        """zéro un une deux* trois* quatr* cinq* six* sept* huit* neuf* neuv* dix* onz* douz* treiz* quatorz* quinz*
        seiz* vingt* trent* quarant* cinquant* soixant* septant* huitant* octant* nonant* cent cents centi*
        centaine* mill* million* milliard* billion* demi* moitié* quart* tiers premi* second* double* triple*
        simple* unique* fois *ième* douzaine* tout* tous chaque* plusieurs quelque* beaucoup peu plus moins certain*
        seul* pourcent* janvier février mars avril mai juin juillet août septembre octobre novembre décembre lundi*
        mardi* mercredi* jeudi* vendredi* samedi* dimanche* aujourd* hui hier demain midi minuit printemps été
        automne* hiver* *mètre* *gramme* *litre* seconde* minute* heure* jour* semaine* mois an ans année* siècle*
        pas jamais sans aucun* nul* ni non rien personne guère sauf faux fausse* refus* manqu* avr dim déc févr janv
        jeu juil lun mar mer nov oct sam ven""",
    ),
    "es": _language(
        """el la los las un una unos unas de del al y o pero es son era eran ser fue ha han había en por para con sobre
        que quien se su sus lo le les como más este esta estos estas ese esa yo él ella ellos nos me entre hasta
        desde cuando porque también""",
        """cero un uno una dos tres cuatr* cinc* seis siete ocho nueve diez once doce trece catorce quince dieci*
        veint* treint* cuarent* cincuent* sesent* setent* ochent* novent* cien* *cient* quinient* mil miles milés*
        millar* millon* millón billon* medi* mitad* tercer* tercio* cuart* primer* segund* quint* sext* séptim*
        octav* noven* décim* *ésim* undécim* duodécim* doble* triple* únic* vez veces docena* tod* cada ambos ambas
        vari* algun* algún much* poc* más menos sol* sólo enero febrero marzo abril mayo junio julio agosto
        septiembre setiembre octubre noviembre diciembre lunes martes miércoles jueves viernes sábado* domingo* hoy
        ayer mañana* mediodía medianoche primavera verano otoño invierno *metro* *gramo* *litro* segundo* minuto*
        hora* día* semana* mes meses año* siglo* no nunca jamás sin ningun* ningún* nad* ni tampoco apenas salvo
        excepto falso* falsa* nieg* fall* abr ago dic dom ene feb jue jul jun lun mar may mié nov oct sáb vie""",
    ),
    "it": _language(
        """il lo la i gli le l un uno una di del dello della dei degli delle d e o ma è sono era erano essere ha hanno
        aveva in nel nella nei nelle per con su sul sulla da dal dalla che chi si suo sua suoi sue loro come più
        questo questa questi anche a al alla ai alle ci noi voi io lui lei""",
        """zero un uno una due* tre tré quattr* cinqu* sei sette sett* otto ott* nov* diec* undic* dodic* tredic*
        quattordic* quindic* sedic* dicias* dicio* dician* vent* trent* quarant* cinquant* sessant* settant* ottant*
        novant* cent* *cent* mille mila mill* *mila milion* miliard* mezz* metà terz* quart* prim* second* quint*
        sest* settim* ottav* non* decim* *esim* doppi* tripl* unic* volt* dozzin* tutt* ogni entramb* divers* alcun*
        molt* poc* più meno solo sola soltanto qualche gennaio febbraio marzo aprile maggio giugno luglio agosto
        settembre ottobre novembre dicembre lunedì martedì mercoledì giovedì venerdì sabato domenic* oggi ieri
        domani mezzogiorno mezzanotte primavera estate autunno inverno *metr* *gramm* *litr* second* minut* ora ore
        giorn* settiman* mese mesi anno anni secol* non no mai senza nessun* null* niente né nemmeno neanche appena
        tranne eccetto fals* rifiut* manc* ago apr dic dom feb gen gio giu lug lun mag mar mer sab set ven""",
    ),
    "pt": _language(
        """o a os as um uma uns umas de do da dos das no na nos nas ao à aos às e ou mas é são era eram ser foi tem têm
        tinha em por para com sobre que quem se seu sua seus suas como mais este esta estes esse essa ele ela eles
        nós eu pelo pela entre até quando porque também""",
        """zero um uma dois duas duzent* três tres trez* trint* quatr* quinh* catorz* cinc* cinqu* seis sete oito nove
        dez onze doze treze quinze dezas* dezes* deze* dezoito dezano* vint* quarent* cinquent* sessent* setent*
        oitent* novent* cem cent* *cent* mil milh* milé* bilh* bili* meio meia* metade* terç* terceir* quart*
        primeir* segund* quint* sext* sétim* oitav* non* décim* *ésim* *gésim* dobr* dupl* tripl* únic* vez vezes
        dúzia* tod* cada ambos ambas vári* algun* algum* muit* pouc* mais menos só soment* apenas janeiro fevereiro
        março abril maio junho julho agosto setembro outubro novembro dezembro *feira sábado* domingo* hoje ontem
        amanhã meio- dia meia-noite primavera verão outono inverno *metro* *grama* *litro* segundo* minuto* hora*
        dia* seman* mês mes* ano* século* não nunca jamais sem nenhum* nada nem tampouco ninguém salvo exceto falso*
        falsa* neg* falt* abr ago dom fev jan jul jun mar nov out qua qui seg set sex sáb ter""",
    ),
    "nl": _language(
        """de het een en of maar is zijn was waren wordt worden werd heeft hebben had in op voor met van te aan bij uit
        naar over als ook dat die dit deze zij hij ze we wij je ik hun haar er niet door om tot dan""",
        """nul een één eén twee* drie* derd* vier* veer* vijf* zes* zeven* acht* tacht* negen* tien* elf* twaalf* dert*
        *dertig* veert* *tien* *tig* honderd* *honderd* duizend* *duizend* miljoen* miljard* biljoen* half halve
        helft* kwart* eerst* laatst* dubbel* *maal *voudig* dozijn* enig* beide* all* veel vele* weinig* meer*
        meest* sommig* elk* ieder* slechts alleen procent* januari februari maart april mei juni juli augustus
        september oktober november december maandag* dinsdag* woensdag* donderdag* vrijdag* zaterdag* zondag*
        vandaag gisteren morgen middag* middernacht lente* zomer* herfst* winter* *meter* *gram* *liter* seconde*
        minuten minuut uur uren dag* week weken maand* jaar* jaren eeuw* niet* geen* nooit niemand* nergens zonder
        noch nauwelijks zelden behalve vals* weiger* ontbr* ontk* apr aug dec feb jan jul jun mrt nov okt sep""",
    ),
    "sv": _language(
        """en ett den det de och eller men är var vara blir blev har hade i på för med av till om vid från som att han
        hon vi ni jag sig sin sitt sina hans hennes deras detta denna dessa också när där än""",
        """noll en ett två* tre* fyr* fört* fjor* fem* sex* sjätt* sju* ått* arton* nio* nit* tio* elv* elft* tolv*
        tolft* tjug* hundra* *hundra* tusen* *tusen* miljon* miljard* halv* hälft* tredje* fjärde* *del* först*
        andra dubbel* *gånger gång* enda enkel* dussin* bå* all* många få flera flest* några någon* något varje mer*
        mindre bara endast procent* januari februari mars april maj juni juli augusti september oktober november
        december måndag* tisdag* onsdag* torsdag* fredag* lördag* söndag* idag igår imorgon dag* natt* vår* sommar*
        höst* vinter* *meter* *gram* *liter* sekund* minut* timm* veck* månad* år* inte ej icke ingen* inga inget
        aldrig utan varken knappt sällan utom falsk* vägr* sakn* apr aug dec feb fre jan lör mån nov okt ons sep sön
        tis tors""",
    ),
    "da": _language(
        """en et den det de og eller men er var være bliver blev har havde i på for med af til om ved fra som at han
        hun vi jeg sig sin sit sine hans hendes deres dette denne disse også når der""",
        """nul en et én ét to tre* fir* fyr* fjerd* fjort* fem* seks* sjet* syv* sytt* ott* att* ni* ti tiend* elv*
        ellev* elft* tolv* tolft* tyv* *tyv* enog* toog* halv* hundred* *hundred* tusind* *tusind* million*
        milliard* *del* først* anden andet andre dobbel* gang* eneste enkel* dusin* beg* all* alt mange få flere
        flest* nogl* nog* hver* mere mindre kun procent* januar februar marts april maj juni juli august september
        oktober november december mandag* tirsdag* onsdag* torsdag* fredag* lørdag* søndag* dag* går morgen middag*
        midnat* forår* sommer* efterår* vinter* *meter* *gram* *liter* sekund* minut* time* uge* måned* år* ikke ej
        ingen* intet aldrig uden hverken næppe sjælden* undtagen falsk* nægt* mangl* apr aug dec feb fre jan jul jun
        lør man mar nov okt ons sep søn tirs tors""",
    ),
    "no": _language(
        """en ei et den det de og eller men er var være blir ble har hadde i på for med av til om ved fra som å at han
        hun vi jeg seg sin sitt sine hans hennes deres dette denne disse også når der""",
        """null en ei et én ett to tre* fir* fjerd* fjort* før* fem* seks* sjett* sju* syv* sytt* søt* ått* atten* ni*
        ti tiend* elv* ellev* tolv* tolvt* tjue* tyve* hundre* *hundre* tusen* *tusen* million* milliard* halv*
        *del* først* annen annet andre dobbel* gang* eneste enkel* dusin* beg* all* alt mange få flere flest* noen
        noe nok hver* mer mest mindre kun bare prosent* januar februar mars april mai juni juli august september
        oktober november desember mandag* tirsdag* onsdag* torsdag* fredag* lørdag* søndag* dag* går morgen middag*
        midnatt* vår* sommer* høst* vinter* *meter* *gram* *liter* sekund* minutt* time* uke* måned* år* ikke ingen*
        intet aldri uten verken neppe sjelden* unntatt falsk* nekt* mangl* apr aug des feb fre jan jul jun lør man
        mar nov okt ons sep søn tir tor""",
    ),
}

OTHERS: Mapping[str, Language] = {
    name: _language(common)
    for name, common in {
        "af": "die het van en is in 'n te om nie vir met op wat aan hulle hy sy ons ek dat word sal deur ook as by na "
        "alle hul een",
        "ca": "el la els les l un una i de del dels d que és són en amb per a al als s es no com més seu seva hi ha "
        "aquest aquesta tots",
        "cs": "a i v ve na se je jsou z ze do s k o to že by byl byla jako pro za po od své svou který které která ale "
        "nebo si jejich mají",
        "cy": "y yr a ac yn o i mae wedi ei eu ar gan am fod bod hynny hwn na nid â'r dros sydd",
        "eo": "la kaj de en estas al por kun ke ne kiu kiuj estis pri sur aŭ ĝi ili ŝi li mi ni ĉiuj",
        "et": "ja on ei see et oma kui mis ka oli ta nad neid on nende kõik või aga sest kes nagu",
        "eu": "eta da ez dute bat den dira du izan zen baino ere dela horrek beste guztiak dituzte",
        "fi": "ja on ei se että oli hän ovat myös kuin joka tai mutta kun ne he niin jos sen ole kaikki ovat heidän",
        "ga": "an na agus ar is i a go ag le do de sé sí tá bhí nach ní mar seo sin ach gach",
        "gl": "con uns unhas cos coas o a os as un unha de do da dos das no na nos nas ao á e ou pero é son ten teñen "
        "en por para que se seu súa como máis este esta todos",
        "hr": "i u na se je su da za od do s sa o a ne to koji koja koje kao ili ali bio bila njihov iz po sva oni",
        "hu": "a az és egy hogy nem is van volt meg de ezt azt ez ki csak már vagy mint minden lehet kell el fel",
        "id": "yang dan di ke dari untuk pada dengan ini itu adalah tidak oleh dalam akan telah atau juga mereka saya "
        "semua orang dia kami kita sebagai",
        "is": "og að í á er sem við um til en það af með fyrir var hann hún ekki þeir því sér þess eru frá hver hverju",
        "la": "et in est non ad cum ut sed qui quae quod ex ab de si enim per aut sunt esse hoc nec omnes",
        "lt": "ir yra į su kad iš tai kaip bet ar jis ji jų jie už dėl buvo ne nuo prie visi savo",
        "lv": "un ir ar ka no uz par kas to bet vai viņš viņa tā kā bija pie ne visi viņi",
        "mt": "il u li ta f' b' għal ma dan din kif jew minn hu hi huma fuq",
        "pl": "i w we z ze na się do nie jest są to że o a od po przez dla jak ale oraz lub był była być ich jego jej "
        "który która wszyscy pod",
        "ro": "și de la în o un este sunt cu pe a al ale din că se nu care pentru mai ca fi să lor lui prin sau toate "
        "ele",
        "sk": "a v vo na sa je sú z zo do s k o to že by bol bola ako pre za po od svoj ktorý ktoré ale alebo si ich",
        "sl": "in v na se je so da za od do s z o ne to ki kot ali pa bil bila njihov svoj iz po vsi imajo",
        "sq": "dhe në të e i një për me nga që është janë se si kjo ky ka por nuk të gjithë",
        "sw": "na ya wa kwa ni katika za la cha yake hii hiyo kama au watu wote kuwa lakini huu",
        "tl": "ang ng mga sa na at ay ni si ito hindi para kung may siya sila lahat isang",
        "tr": "ve bir bu da de için ile olan olarak ne daha gibi çok var o her ama veya olduğu kadar sonra bütün",
        "vi": "và là của có được cho trong không với một các những người này đã để từ khi cũng như đến ra sinh mọi",
    }.items()
}


def _common_in() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, language in chain(LANGUAGES.items(), OTHERS.items()):
        for word in language.common:
            found[word] = (*found.get(word, ()), name)
    return found


COMMON_IN: Mapping[str, tuple[str, ...]] = _common_in()
"""The languages among whose commonest words a word is."""

ELSEWHERE = re.compile(
    r"nicht|kein(e[nmrs]?)?|niemals|ohne|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|"
    r"ne|pas|jamais|sans|deux|trois|quatre|cinq|sept|huit|neuf|onze|douze|"
    r"nunca|jamás|tres|cuatro|cinco|siete|ocho|nueve|diez|não|sem|dois|oito|dez|"
    r"non|senza|mai|quattro|cinque|sette|otto|dieci|niet|geen|twee|drie|vijf|inte|ikke|"
    r"tidak|bukan|jangan|tanpa|belum|không|chưa|chẳng|değil|hiç|yok|nije|nisu|nie|není|nejsou|žádn\w*|żad\w*|"
    r"nigdy|nikdy|nincs\w*|soha|eivät|ikinä|koskaan|ningú|niciodată|fără|ningún|dous|dúas|catro|sen|dues|cinc|sis|vuit|hindi|walang|hapana|siyo"
)
"""Negations and small numbers in another language than the text around them, such as a quoted phrase."""
