/* Starts a program with one signal blocked and another ignored. */
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    signal(SIGPIPE, SIG_IGN);
    return argc > 1 ? execvp(argv[1], argv + 1) : 1;
}
