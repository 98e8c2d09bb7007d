/* lane_traffic.c -- TCP's statistics of a connection.
 *
 * The kernel measures the time during which a connection has unacknowledged bytes, in ticks of 1 to
 * 10 ms.  It also measures for how long of that time the reader's window was full (tcp_info; Linux
 * 4.9).  The difference of these two times is the time that the network needs, plus delays of
 * acknowledgements while the reader does not run.  The kernel's delivery rate does not include such
 * delays.  It is measured only while enough bytes are in flight.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "link/lane.h"

void lki_lane_traffic(const lki_lane *lane, lki_traffic *out)
{
    struct tcp_info info  = { .tcpi_state = 0 };
    socklen_t       bytes = sizeof info;

    *out = (lki_traffic){ .bytes = 0 };
    if (lane->fd < 0 || getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_sndbuf_limited))
        return;
    out->bytes = info.tcpi_bytes_acked;
    out->rate  = (double)info.tcpi_delivery_rate;
    out->busy  = 1e-6 * (double)(info.tcpi_busy_time - info.tcpi_rwnd_limited);
}
