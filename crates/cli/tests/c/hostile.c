// Stands where `ironwarp show` looks for adapters, as a user that nobody trusts, and answers with what the first argument
// says; or, with `hammer` and a process, asks the adapter of that one without end. Prints a line once it is at work.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char ESCAPES[] =
    "adapter\tpersona=\033]0;OWNED\007\033[31mred\ttags=1\tmax_tags=2\tstopped=\033[2J\n"
    "qp\tnumber=7\tstate=\302\2332J\tpeer=\342\200\256reversed\tfault=back\b\b\b\bgone\177\n";

static int file_with(const char *text, size_t len, int seals) {
    int file = memfd_create("answer", MFD_ALLOW_SEALING);
    if (write(file, text, strlen(text)) < 0 || ftruncate(file, len) < 0 || fcntl(file, F_ADD_SEALS, seals) < 0)
        exit(3);
    return file;
}

static int answer(const char *what) {
    int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    if (!strcmp(what, "zero")) return open("/dev/zero", O_RDONLY);
    if (!strcmp(what, "fifo")) {
        int ends[2];
        return pipe(ends) ? -1 : ends[0];
    }
    if (!strcmp(what, "unsealed")) return file_with(ESCAPES, sizeof ESCAPES - 1, 0);
    if (!strcmp(what, "huge")) return file_with(ESCAPES, (16 << 20) + 1, all);
    return file_with(ESCAPES, sizeof ESCAPES - 1, all);
}

static void hand_over(int to, int file) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &file, sizeof file);
    sendmsg(to, &message, MSG_NOSIGNAL);
}

static socklen_t name_of(int process, struct sockaddr_un *name) {
    name->sun_family = AF_UNIX;
    int len = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "ironwarp/%d/0", process);
    return offsetof(struct sockaddr_un, sun_path) + 1 + len;
}

static void at_work(void) {
    puts("ready");
    fflush(stdout);
}

static int hammer(int process) {
    struct sockaddr_un name = {0};
    socklen_t len = name_of(process, &name);
    for (int first = 1;; first = 0) {
        int asking = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(asking, (void *)&name, len)) return 2;
        close(asking);
        if (first) at_work();
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || (getuid() == 0 && (setgid(65534) || setuid(65534)))) return 2;
    prctl(PR_SET_NAME, "\033[31mevil");
    if (!strcmp(argv[1], "hammer")) return hammer(atoi(argv[2]));
    struct sockaddr_un name = {0};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listener, (void *)&name, name_of(getpid(), &name)) || listen(listener, 16)) return 2;
    at_work();
    if (!strcmp(argv[1], "silent")) pause();
    for (;;) {
        int caller = accept(listener, NULL, NULL), file = answer(argv[1]);
        hand_over(caller, file);
        close(file);
        close(caller);
    }
}
