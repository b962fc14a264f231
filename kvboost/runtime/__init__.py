"""Everything that knows torch and transformers, of the versions that it was tried with."""

from kvboost.extras import check_version, require

require("runtime", "kvboost.runtime")
# generate() takes its cache as cache= from 5.24 on; the private names in attention/transformers_api.py are those of 5.
check_version("transformers", "5.24", "6", "kvboost.runtime")
check_version("torch", "2.6", "", "kvboost.runtime")
