/* Stands in for the drop-in: a library that can be told from the real one. */
const char *stand_in(void) { return "here"; }
