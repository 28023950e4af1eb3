/* Runs one test: `rsocket NAME 4|6`. */
#include "common.h"

int family = AF_INET;
pid_t server_process;

unsigned char byte_at(unsigned seed, size_t position)
{
	uint64_t mixed = (position / 7 + seed) * 0x9e3779b97f4a7c15ULL + position;
	return mixed >> 29;
}

void fill(unsigned char *bytes, unsigned seed, size_t position, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(seed, position + i);
}

void verify(const unsigned char *bytes, unsigned seed, size_t position, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i] != byte_at(seed, position + i)) {
			fprintf(stderr, "stream %u is wrong at %zu\n", seed, position + i);
			_exit(1);
		}
	}
}

void send_all(int rs, unsigned seed, size_t len, size_t piece)
{
	unsigned char *bytes = malloc(piece);
	for (size_t done = 0; done < len;) {
		size_t now = len - done < piece ? len - done : piece;
		fill(bytes, seed, done, now);
		CHECK(rsend(rs, bytes, now, 0) == (ssize_t)now);
		done += now;
	}
	free(bytes);
}

void receive_all(int rs, unsigned seed, size_t len, size_t piece)
{
	unsigned char *bytes = malloc(piece);
	for (size_t done = 0; done < len;) {
		size_t most = len - done < piece ? len - done : piece;
		ssize_t now = rrecv(rs, bytes, most, 0);
		CHECK(now > 0 && now <= (ssize_t)most);
		verify(bytes, seed, done, now);
		done += now;
	}
	free(bytes);
}

void receive_end(int rs)
{
	char byte;
	CHECK(rrecv(rs, &byte, 1, 0) == 0);
}

struct sockaddr_storage address(int port, socklen_t *len)
{
	struct sockaddr_storage storage = {0};
	if (family == AF_INET) {
		struct sockaddr_in *v4 = (void *)&storage;
		*v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		*len = sizeof *v4;
	} else {
		struct sockaddr_in6 *v6 = (void *)&storage;
		*v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
		v6->sin6_addr = in6addr_loopback;
		*len = sizeof *v6;
	}
	return storage;
}

int connect_to(int port)
{
	socklen_t len;
	struct sockaddr_storage to = address(port, &len);
	int rs = rsocket(family, SOCK_STREAM, 0);
	CHECK(rs >= 0);
	CHECK(rconnect(rs, (void *)&to, len) == 0);
	return rs;
}

int port_of(int rs)
{
	struct sockaddr_storage name;
	socklen_t len = sizeof name;
	CHECK(rgetsockname(rs, (void *)&name, &len) == 0);
	CHECK(name.ss_family == family);
	return ntohs(family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port
				       : ((struct sockaddr_in6 *)&name)->sin6_port);
}

int accept_one(int listener)
{
	int rs = raccept(listener, NULL, NULL);
	CHECK(rs >= 0);
	return rs;
}

void set_nonblocking(int rs)
{
	CHECK(rfcntl(rs, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rfcntl(rs, F_GETFL) & O_NONBLOCK);
}

/* Creates a socket that listens on any port, and allows two mappings. */
static int create_listener(void)
{
	socklen_t len;
	struct sockaddr_storage at = address(0, &len);
	int listener = rsocket(family, SOCK_STREAM, 0);
	int mappings = 2;
	CHECK(listener >= 0);
	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &mappings, sizeof mappings) == 0);
	CHECK(rbind(listener, (void *)&at, len) == 0);
	CHECK(rlisten(listener, 128) == 0);
	return listener;
}

static void run(const struct test *test)
{
	int ends[2], port, status;
	CHECK(pipe(ends) == 0);
	server_process = fork(); /* before either process has a socket */
	CHECK(server_process >= 0);
	if (server_process == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* if the client fails */
		int listener = create_listener();
		port = port_of(listener);
		CHECK(port > 0);
		CHECK(write(ends[1], &port, sizeof port) == sizeof port);
		test->server(listener);
		exit(0);
	}
	CHECK(read(ends[0], &port, sizeof port) == sizeof port);
	test->client(port);
	CHECK(waitpid(server_process, &status, 0) == server_process);
	CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	family = argv[2][0] == '6' ? AF_INET6 : AF_INET;
	alarm(120);
	const struct test *lists[] = {stream_tests, wait_tests};
	for (size_t list = 0; list < 2; list++) {
		for (const struct test *test = lists[list]; test->name; test++) {
			if (strcmp(test->name, argv[1]) == 0) {
				run(test);
				printf("%s: good\n", test->name);
				return 0;
			}
		}
	}
	return 2;
}
