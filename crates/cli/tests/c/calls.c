/* Is linked with a library that is linked with one of the drop-in's name. */
#include <stdio.h>

const char *driver(void);

int main(void)
{
    puts(driver());
    return 0;
}
