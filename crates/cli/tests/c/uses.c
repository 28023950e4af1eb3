/* A program, or a library, that is linked with one of the drop-in's name. */
#include <stdio.h>

const char *stand_in(void);

const char *driver(void) { return stand_in(); }

#ifdef MAIN
int main(void)
{
    puts(driver());
    return 0;
}
#endif
