/* Sends every size between all ranks and checks every received byte; then computes a sum over all ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char byte_of(int from, int to, size_t size, size_t at)
{
	return (unsigned char)(from * 131 + to * 17 + size * 7 + at * 29 + (at >> 8));
}

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const size_t sizes[] = {0, 1, 8, 100, 4096, 65536, 1048577};
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		size_t size = sizes[s];
		unsigned char *out = malloc(size + 1), *in = malloc(size + 1);
		for (int step = 1; step < ranks; step++) {
			int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
			for (size_t at = 0; at < size; at++)
				out[at] = byte_of(rank, to, size, at);
			MPI_Sendrecv(out, (int)size, MPI_BYTE, to, 1, in, (int)size, MPI_BYTE, from, 1,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (size_t at = 0; at < size; at++) {
				if (in[at] != byte_of(from, rank, size, at)) {
					fprintf(stderr, "exchange: byte %zu of %zu from %d is wrong\n", at, size, from);
					MPI_Abort(MPI_COMM_WORLD, 1);
				}
			}
		}
		free(out);
		free(in);
	}
	long sum = 0, mine = rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (sum != (long)ranks * (ranks + 1) / 2)
		MPI_Abort(MPI_COMM_WORLD, 2);
	if (rank == 0)
		printf("exchange: all bytes as sent\n");
	MPI_Finalize();
	return 0;
}
