/* The check of programs that test exit(): ends the program without it, and says where, if a condition does not hold. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(holds)                                                                \
	do {                                                                        \
		if (!(holds)) {                                                     \
			fprintf(stderr, "line %d: %s: %m\n", __LINE__, #holds);     \
			abort();                                                    \
		}                                                                   \
	} while (0)
