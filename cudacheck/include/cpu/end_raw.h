#pragma pop_macro("runtime")
#pragma pop_macro("RAW")
