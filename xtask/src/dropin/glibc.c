/*
 * Linked into released files, so that they run with glibc 2.28 and newer, whatever glibc they were built with.
 *
 * The linker binds a name to its newest version. When glibc 2.34 merged libpthread and libdl, their functions got a new
 * version; the old version remains, for the same functions. Here each name is a function of our own, not exported,
 * that calls the older version. `cargo xtask symbols` prints names that are missing in this list.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#define GO(name) "jmp *" name "@GOTPCREL(%rip)"
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
#define GO(name) "b " name
#else
#error "what is the first version of glibc here, and which instruction jumps to a function?"
#endif

#define AT(node, name)                       \
	__asm__(".text\n"                    \
		".symver older_" #name ", " #name "@" node "\n" \
		".globl " #name "\n"         \
		".hidden " #name "\n"        \
		".type " #name ", %function\n" \
		#name ": " GO("older_" #name) "\n" \
		".size " #name ", . - " #name "\n")

#define OLDER(name) AT(BASE, name)

OLDER(dladdr);
OLDER(dlclose);
OLDER(dlerror);
OLDER(dlopen);
OLDER(dlsym);
OLDER(dlvsym);
OLDER(pthread_attr_getguardsize);
OLDER(pthread_attr_getstack);
OLDER(pthread_attr_setguardsize);
OLDER(pthread_attr_setstacksize);
OLDER(pthread_create);
OLDER(pthread_detach);
OLDER(pthread_getattr_np);
OLDER(pthread_getspecific);
OLDER(pthread_join);
OLDER(pthread_key_create);
OLDER(pthread_key_delete);
OLDER(pthread_kill);
OLDER(pthread_once);
OLDER(pthread_setspecific);
OLDER(pthread_sigmask);
OLDER(pthread_testcancel);

#if defined(__x86_64__)
AT("GLIBC_2.12", pthread_setname_np);
#else
OLDER(pthread_setname_np);
#endif

#define HIDDEN __attribute__((visibility("hidden")))

/* Since 2.30. Rust's library checks at run time whether it exists, but that reference alone would require 2.30. */
HIDDEN pid_t gettid(void)
{
	return syscall(SYS_gettid);
}

/* Since 2.33; inline functions before. On 64-bit machines the structures of the kernel and of the library are the same. */
HIDDEN int fstatat64(int dir, const char *path, struct stat64 *status, int flags)
{
	return syscall(SYS_newfstatat, dir, path, status, flags);
}

HIDDEN int stat64(const char *path, struct stat64 *status)
{
	return fstatat64(AT_FDCWD, path, status, 0);
}

HIDDEN int lstat64(const char *path, struct stat64 *status)
{
	return fstatat64(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

HIDDEN int fstat64(int file, struct stat64 *status)
{
	return syscall(SYS_fstat, file, status);
}

#ifdef EXECUTABLE
/* Since 2.29. Rust's library calls it to start a program in another directory, which ours do not. */
HIDDEN int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path)
{
	(void)actions;
	(void)path;
	return ENOSYS;
}

/*
 * Before 2.34, programs contained the function that runs their constructors, and the library called it; since then, the
 * library runs them itself, but still calls such a function.
 */
typedef void constructor(int, char **, char **);
extern HIDDEN constructor *__init_array_start[], *__init_array_end[];
extern void _init(void);

__attribute__((used)) static void run_constructors(int count, char **arguments, char **environment)
{
	_init();
	for (constructor **next = __init_array_start; next < __init_array_end; next++)
		(*next)(count, arguments, environment);
}

#if defined(__x86_64__)
#define BRING "lea run_constructors(%rip), %rcx"
#else
#define BRING "adrp x3, run_constructors\n add x3, x3, :lo12:run_constructors"
#endif

__asm__(".text\n"
	".symver older_start, __libc_start_main@" BASE "\n"
	".globl __libc_start_main\n"
	".hidden __libc_start_main\n"
	".type __libc_start_main, %function\n"
	"__libc_start_main: " BRING "\n" GO("older_start") "\n"
	".size __libc_start_main, . - __libc_start_main\n");
#endif
