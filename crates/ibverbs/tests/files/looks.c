/* Looks for the files of the device in every way that the C library has: by absolute paths, from the current
 * directory, from an open one, by reading directories. NAME, on the command line, is that of the device. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(that)                                                                                                    \
	do {                                                                                                           \
		if (!(that)) {                                                                                         \
			printf("line %d: %s, errno %s\n", __LINE__, #that, strerror(errno));                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CLASS "/sys/class/infiniband"
#define ITSELF "/sys/devices/platform/ironwarp"

/* From the private headers of the library. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static const char *name;

/* Returns the absolute path of a file of the device. The result is valid for the next three calls. */
static const char *device_path(const char *file)
{
	static char path[4][PATH_MAX];
	static int turn;
	turn = (turn + 1) % 4;
	snprintf(path[turn], PATH_MAX, CLASS "/%s%s", name, file);
	return path[turn];
}

/* Whether a file contains only this line. Closes the descriptor. */
static int has_line(int fd, const char *line)
{
	char text[256] = "";
	CHECK(fd >= 0);
	CHECK(read(fd, text, sizeof text - 1) > 0);
	CHECK(close(fd) == 0);
	return strcmp(text, line) == 0;
}

/* Whether a directory has exactly one entry of this name and type. */
static int has_entry(DIR *folder, const char *entry, int type)
{
	struct dirent *found;
	int count = 0;
	rewinddir(folder);
	while ((found = readdir(folder)))
		count += strcmp(found->d_name, entry) == 0 && found->d_type == type;
	return count == 1;
}

static int is_no_dot(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void whole_paths(void)
{
	struct stat stat_;
	CHECK(has_line(open(device_path("/ports/1/link_layer"), O_RDONLY), "Ethernet\n"));
	CHECK(has_line(open(device_path("//ports/./1/../1/link_layer"), O_RDONLY), "Ethernet\n"));
	CHECK(stat(device_path("/node_guid"), &stat_) == 0 && S_ISREG(stat_.st_mode) && stat_.st_size == 4096);
	CHECK(access(device_path("/ports/1/gids/255"), R_OK) == 0);
	CHECK(access(device_path("/ports/1/gids/256"), R_OK) == -1 && errno == ENOENT);
	CHECK(access(CLASS "/DEVICE", R_OK) == -1 && errno == ENOENT);
	CHECK(open(device_path("/node_desc"), O_WRONLY) == -1 && errno == EACCES);
	CHECK(!fopen(device_path("/node_desc"), "w") && errno == EACCES);
	FILE *stream = fopen(device_path("/node_desc"), "r");
	char line[128];
	CHECK(stream && fgets(line, sizeof line, stream) && strlen(line) == strlen(name) + 1);
	CHECK(strncmp(line, name, strlen(name)) == 0 && fclose(stream) == 0);
}

/* As in the kernel, the file exists and cannot be read. */
static void an_index_without_an_address(void)
{
	char byte;
	int fd = open(device_path("/ports/1/gid_attrs/types/255"), O_RDONLY);
	CHECK(fd >= 0 && read(fd, &byte, 1) == -1 && errno == EINVAL && close(fd) == 0);
	fd = open(device_path("/ports/1/gid_attrs/ndevs/255"), O_RDONLY);
	CHECK(fd >= 0 && read(fd, &byte, 1) == -1 && errno == EINVAL && close(fd) == 0);
	CHECK(has_line(open(device_path("/ports/1/gid_attrs/types/0"), O_RDONLY), "RoCE v2\n"));
	CHECK(has_line(open(device_path("/ports/1/gids/255"), O_RDONLY), "0000:0000:0000:0000:0000:0000:0000:0000\n"));
}

static void the_current_folder(void)
{
	char path[PATH_MAX];
	CHECK(chdir(device_path("/ports")) == 0);
	CHECK(getcwd(path, sizeof path) && strcmp(path, device_path("/ports")) == 0);
	CHECK(!getcwd(path, strlen(device_path("/ports"))) && errno == ERANGE);
	char *own = getcwd(NULL, 0);
	CHECK(own && strcmp(own, device_path("/ports")) == 0);
	free(own);
	CHECK(has_line(open("1/link_layer", O_RDONLY), "Ethernet\n"));
	CHECK(chdir("../..") == 0 && getcwd(path, sizeof path) && strcmp(path, CLASS) == 0);
	CHECK(access(name, R_OK | X_OK) == 0 && access("DEVICE", R_OK) == -1);
	CHECK(chdir("../net") == 0 && getcwd(path, sizeof path) && strcmp(path, "/sys/class/net") == 0);
	CHECK(access("lo/mtu", R_OK) == 0);
	int fd = open(device_path("/ports/1"), O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0 && fchdir(fd) == 0 && close(fd) == 0);
	CHECK(has_line(open("pkeys/0", O_RDONLY), "0xffff\n"));
	CHECK(chdir("/sys/class") == 0);
	CHECK(chdir("infiniband") == 0 && getcwd(path, sizeof path) && strcmp(path, CLASS) == 0);
	CHECK(chdir("/") == 0 && getcwd(path, sizeof path) && strcmp(path, "/") == 0);
}

static void an_open_folder(void)
{
	struct stat one, other;
	int root = open("/", O_RDONLY | O_DIRECTORY);
	int class = openat(root, CLASS + 1, O_RDONLY | O_DIRECTORY);
	int device = openat(class, name, O_RDONLY | O_DIRECTORY);
	int copy = dup(device);
	CHECK(root >= 0 && class >= 0 && device >= 0 && copy >= 0);
	CHECK(has_line(openat(copy, "ports/1/link_layer", O_RDONLY), "Ethernet\n"));
	CHECK(faccessat(device, "ports/1/nothing", R_OK, 0) == -1 && errno == ENOENT);
	CHECK(fstat(device, &one) == 0 && fstatat(class, name, &other, 0) == 0 && one.st_ino == other.st_ino);
	CHECK(fstatat(device, "", &other, AT_EMPTY_PATH) == 0 && one.st_ino == other.st_ino);
	DIR *folder = fdopendir(device);
	CHECK(folder && has_entry(folder, "fw_ver", DT_REG) && has_entry(folder, "..", DT_DIR) && closedir(folder) == 0);
	CHECK(close(root) == 0 && close(class) == 0 && close(copy) == 0);
}

static void reading_folders(void)
{
	struct dirent **list;
	DIR *folder = opendir(CLASS);
	CHECK(folder && has_entry(folder, name, DT_DIR) && closedir(folder) == 0);
	folder = opendir(device_path("/"));
	CHECK(folder && has_entry(folder, "ports", DT_DIR) && has_entry(folder, "device", DT_LNK) && closedir(folder) == 0);
	int count = scandir(CLASS, &list, is_no_dot, alphasort);
	CHECK(count == 1 && strcmp(list[0]->d_name, name) == 0);
	free(list[0]);
	free(list);
	count = scandir(device_path("/ports/1/gids"), &list, is_no_dot, versionsort);
	CHECK(count == 256 && strcmp(list[255]->d_name, "255") == 0);
	while (count--)
		free(list[count]);
	free(list);
	CHECK(!opendir(device_path("/fw_ver")) && errno == ENOTDIR);
	folder = opendir("/dev/infiniband");
	CHECK(folder && has_entry(folder, "uverbs0", DT_CHR) && closedir(folder) == 0);
	/* Other directories are read as usual while a virtual one is open. */
	folder = opendir(CLASS);
	DIR *others = opendir("/sys/class/net");
	CHECK(folder && others && readdir(folder) && (has_entry(others, "lo", DT_LNK) || has_entry(others, "lo", DT_DIR)));
	CHECK(closedir(folder) == 0 && closedir(others) == 0);
}

static void the_link_to_the_device(void)
{
	char path[PATH_MAX];
	struct stat stat_;
	CHECK(lstat(device_path("/device"), &stat_) == 0 && S_ISLNK(stat_.st_mode));
	CHECK(stat(device_path("/device"), &stat_) == 0 && S_ISDIR(stat_.st_mode));
	ssize_t length = readlink(device_path("/device"), path, sizeof path);
	CHECK(length > 0 && strncmp(path, "../../../devices/platform/ironwarp", length) == 0);
	CHECK(realpath(device_path("/device"), path) && strcmp(path, ITSELF) == 0);
	CHECK(realpath(device_path("/device/vendor"), path) && strcmp(path, ITSELF "/vendor") == 0);
	CHECK(has_line(open(path, O_RDONLY), "0x495752\n"));
	CHECK(realpath(device_path(""), path) && strcmp(path, device_path("")) == 0);
	CHECK(!realpath(device_path("/nothing"), path) && errno == ENOENT);
	CHECK(access(device_path("/device/net/lo/mtu"), R_OK) == 0);
	CHECK(chdir(device_path("/device")) == 0 && getcwd(path, sizeof path) && strcmp(path, ITSELF) == 0);
	CHECK(access("../ironwarp/net/lo", R_OK) == 0 && chdir("/") == 0);
}

static void verbs_say_the_same(void)
{
	int count;
	char line[64];
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && strcmp(ibv_get_device_name(list[0]), name) == 0);
	CHECK(strcmp(list[0]->ibdev_path, device_path("")) == 0);
	struct ibv_device mocked = {.name = "mocked"};
	CHECK(strcmp(ibv_get_device_name(&mocked), "mocked") == 0);
	CHECK(!mlx5dv_is_supported(list[0]));
	unsigned long long guid = be64toh(ibv_get_device_guid(list[0]));
	snprintf(line, sizeof line, "%04llx:%04llx:%04llx:%04llx\n", guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff,
		 guid & 0xffff);
	CHECK(has_line(open(device_path("/node_guid"), O_RDONLY), line));
	CHECK(has_line(open(device_path("/sys_image_guid"), O_RDONLY), line));
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "hca_type", line, sizeof line) == 8 && !strcmp(line, "ironwarp"));
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "nothing", line, sizeof line) == -1 && errno == ENOENT);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_port_attr port;
	CHECK(context && ibv_query_port(context, 1, &port) == 0);
	snprintf(line, sizeof line, "0x%x\n", port.lid);
	CHECK(has_line(open(device_path("/ports/1/lid"), O_RDONLY), line));
	snprintf(line, sizeof line, "0x%08x\n", port.port_cap_flags);
	CHECK(has_line(open(device_path("/ports/1/cap_mask"), O_RDONLY), line));
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(list);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	name = argv[1];
	errno = 0;
	whole_paths();
	an_index_without_an_address();
	the_current_folder();
	an_open_folder();
	reading_folders();
	the_link_to_the_device();
	verbs_say_the_same();
	return 0;
}
