/* Uses no RDMA. Prints everything about its process that a preloaded library could have changed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void show_status(void)
{
    static const char *const wanted[] = { "Threads:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "Seccomp:", "NoNewPrivs:", "Umask:" };
    char line[512];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        for (size_t at = 0; at < sizeof wanted / sizeof *wanted; at++)
            if (strncmp(line, wanted[at], strlen(wanted[at])) == 0)
                fputs(line, stdout);
    if (file)
        fclose(file);
}

static void show_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    int count = 0;
    while (directory && (entry = readdir(directory)))
        count += entry->d_name[0] != '.';
    if (directory)
        closedir(directory);
    printf("descriptors %d\n", count - 1); /* one was the directory */
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("descriptor %d\n", fd);
}

int main(int argc, char **argv, char **environment)
{
    int first = errno;
    (void)argc;
    if (argv[1]) /* with any argument, only start and exit */
        return 0;
    printf("errno %d\n", first);
    show_descriptors();
    show_status();
    for (int number = 1; number < 65; number++) {
        struct sigaction action;
        if (sigaction(number, 0, &action) == 0 && (action.sa_handler != SIG_DFL || action.sa_flags))
            printf("signal %d %p %x\n", number, (void *)action.sa_handler, action.sa_flags);
    }
    stack_t stack;
    if (sigaltstack(0, &stack) == 0)
        printf("signal stack %x\n", stack.ss_flags);
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        struct rlimit limit;
        if (getrlimit(which, &limit) == 0)
            printf("limit %d %lu %lu\n", which, (unsigned long)limit.rlim_cur, (unsigned long)limit.rlim_max);
    }
    printf("locale %s\n", setlocale(LC_ALL, 0));
    for (char **one = environment; *one; one++)
        if (strncmp(*one, "LD_", 3) != 0)
            printf("variable %s\n", *one);
    return 0;
}
