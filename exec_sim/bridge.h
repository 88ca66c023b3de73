/* bridge.h - SimGrid as a calendar: timers, and flows of bytes that share links.
 *
 * This header is everything Weft asks of SimGrid (https://simgrid.org) and bridge.cc is the only
 * C++ of the project.  The core keeps the graph of what waits for what; the bridge is told of a
 * timer (a kernel) or of a flow (a copy, a hop of a collective) at the moment it may start, and
 * calls back when it has ended; that call starts what follows.  There are no actors, hosts or
 * routing tables: a flow carries the list of its links.
 *
 *   weft_bridge_open (done, user, &error)
 *     uint32_t up = weft_bridge_link (50e9);
 *     weft_bridge_flow (1e9, &up, 1, 2e-6, tag);   done (user, tag) comes 0.02 s + 2 us later
 *     weft_bridge_run (&error);                    returns when nothing is left
 *   weft_bridge_close ();
 *
 * Units: bytes, bytes per second, seconds.  All dates are relative to weft_bridge_open().
 *
 * HOW LINKS ARE SHARED.  Max-min fairness: on its bottleneck every flow gets the same rate,
 * whatever its latency (RDMA flows have no round trips to wait for, unlike the TCP flows that
 * SimGrid's models favour by nearness).  A flow first waits for its latency and uses no link
 * meanwhile, then transfers at the rate of its bottleneck, recomputed whenever a flow that it meets
 * directly or through others starts or ends.  A link listed k times counts k times: the flow takes
 * k bytes of it per byte moved.
 *
 * WHO COMES FIRST.  At equal dates timers come before flows; then the one created first.  A timer
 * of zero delay created in a callback is called at the same date, after the timers and the flows
 * already due then.  The order is a function of the calls made, never of addresses or hashing.
 *
 * EXACTNESS.  Durations are exact up to the rounding of double dates.  Bytes are rounded to 2^-16:
 * SimGrid counts whole units, so the bridge gives it units of 2^-16 byte and scales every capacity
 * by the same power of two, which changes no digit of a quotient.  Ends of flows less than 1e-12 s
 * apart are one date.  Dates of timers are sums of doubles, as a caller would add them up.
 *
 * SEVERAL SIMULATIONS.  One process can run any number, one after the other: the engine is made
 * once (0.2 ms, in the first weft_bridge_open) and kept, links are re-used with their new
 * capacities. SimGrid has no function that sets its clock back.  The bridge does it nevertheless
 * where it finds the clock (see weft_bridge_shortcuts), so that every simulation gives the same
 * bits as in a process of its own.  Where it does not, it subtracts the date of opening: after T
 * seconds simulated in this process an event is then off by up to T * 2^-53 (1e-13 s after 1000 s).
 *
 * COSTS, measured with SimGrid 3.32 on one core of a small cloud machine.  A timer 0.2 us, less
 * where dates are equal; a flow 1 us.  But each start or end of a flow re-solves all flows
 * connected to it through shared links, 0.15 us each (at equal dates once): leave out links that
 * cannot be a bottleneck.  The number of links of one flow costs its square beyond about a hundred.
 * 2.5 KB per flow in flight.  The solver recurses over connected flows: a chain of 65 000 works
 * with the usual stack of 8 MB, one of 150 000 does not.
 *
 * LIMITS.  One thread, one simulation at a time (SimGrid has one engine per process).  SimGrid sees
 * no argument of ours, prints nothing, and the signal handlers it installs are undone.  No C++
 * exception leaves the bridge.  A callback must return: no longjmp through it.  */
#pragma once
#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

/* What was created with `tag` has ended; weft_bridge_now() is its date.  May create more. */
typedef void (*weft_bridge_done)(void *user, uint64_t tag);

/* Starts a simulation at date 0 with no links.  `user` stays the caller's.  Fails when a simulation
 * is open already, or when this SimGrid cannot be set up. */
gboolean weft_bridge_open (weft_bridge_done done, void *user, GError **error);

/* A link of this simulation; ids count from 0.  The capacity is positive and finite.  May be called
 * at any time, in callbacks too. */
uint32_t weft_bridge_link (double bytes_per_s);

/* Starts a flow now.  `links` is copied and may repeat a link.  A flow that shares nothing, because
 * it has no links or no bytes, is a timer of `latency`.  One of more than 2^47 bytes (140 TB) makes
 * the run fail. */
void weft_bridge_flow (double bytes, const uint32_t *links, uint32_t n_links, double latency,
                       uint64_t tag);

/* Starts a timer; the delay is at least 0. */
void weft_bridge_after (double delay, uint64_t tag);

/* In a callback the date of what has ended; otherwise that of the last callback, or 0. */
double weft_bridge_now (void);

/* Returns when nothing is left to end; may be called again after more was started.  Fails with
 * SimGrid's words when SimGrid did. */
gboolean weft_bridge_run (GError **error);

/* Ends the simulation; what has not ended yet is dropped without a call. */
void weft_bridge_close (void);

/* Timers and flows created since weft_bridge_open(). */
uint64_t weft_bridge_activities (void);

/* Version of the SimGrid library in use: "3.32". */
const char *weft_bridge_version (void);

/* Two places where the bridge reaches behind SimGrid's interface, each only after checking that
 * what it found is what it looks for, else SimGrid is left as it is: its clock is set back (above),
 * and a list of running activities that SimGrid scans whole at every end, hence quadratic, is kept
 * empty (3.32 only; later versions are not known well enough).  Results are the same bits without
 * them in the first simulation of a process. Wanted unless switched off here; takes effect with the
 * next weft_bridge_open(). */
void weft_bridge_shortcuts (gboolean wanted);

G_END_DECLS
