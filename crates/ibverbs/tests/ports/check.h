/* The check of the test programs: ends the program, and says where, if a condition does not hold. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)
