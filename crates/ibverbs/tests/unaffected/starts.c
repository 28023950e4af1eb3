/* Starts a program many times with and without a preloaded library, taking turns, and prints the cost of one start:
 * the medians of wall-clock time and of processor time, in microseconds. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static double microseconds(struct timeval time)
{
    return time.tv_sec * 1e6 + time.tv_usec;
}

/* PROGRAM FOLDER FILE RUNS */
int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int runs = atoi(argv[4]);
    double *wall[2], *cpu[2];
    for (int with = 0; with < 2; with++) {
        wall[with] = calloc(runs, sizeof(double));
        cpu[with] = calloc(runs, sizeof(double));
    }
    char *words[] = { argv[1], "start", 0 };
    for (int run = 0; run < runs; run++)
        for (int with = 0; with < 2; with++) {
            if (with) {
                setenv("LD_LIBRARY_PATH", argv[2], 1);
                setenv("LD_PRELOAD", argv[3], 1);
            } else {
                unsetenv("LD_LIBRARY_PATH");
                unsetenv("LD_PRELOAD");
            }
            pid_t child;
            int status;
            struct rusage usage;
            double began = now();
            if (posix_spawn(&child, argv[1], 0, 0, words, environ))
                return 3;
            if (wait4(child, &status, 0, &usage) != child || status)
                return 4;
            wall[with][run] = now() - began;
            cpu[with][run] = microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
        }
    printf("%.0f %.0f %.0f %.0f\n", median(wall[0], runs), median(wall[1], runs), median(cpu[0], runs), median(cpu[1], runs));
    return 0;
}
