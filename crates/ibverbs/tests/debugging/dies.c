/* Sends a message, receives it, and is killed. */
#include "../check/kit.h"
#include <signal.h>

int main(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64));
	struct ibv_wc wc;
	while (poll_once(&b, &wc) == 0)
		;
	CHECK(wc.wr_id == RECEIVE);
	raise(SIGKILL);
}
