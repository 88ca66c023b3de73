/* bridge.h - SimGrid as an event queue: timers, and flows of bytes that share links.
 *
 * This header has all functions of SimGrid (https://simgrid.org) that Weft uses. bridge.cc is the
 * only C++ file of the project besides CUDA kernels. The executor keeps the dependency graph. It
 * starts a timer (a kernel) or a flow (a copy, a hop of a collective) at the moment the op may
 * start; the bridge calls back when the timer or flow has ended, and the callback starts the ops
 * that depend on it. There are no actors and no routing tables: a flow carries the list of its
 * links. Hosts only count energy.
 *
 *   weft_bridge_open (done, user, &error)
 *     uint32_t up = weft_bridge_link (50e9);
 *     weft_bridge_flow (1e9, &up, 1, 2e-6, tag);   done (user, tag) comes 0.02 s + 2 us later
 *     weft_bridge_run (&error);                    returns when all have ended
 *   weft_bridge_close ();
 *
 * Units: bytes, bytes per second, seconds. Dates are simulated seconds since weft_bridge_open().
 *
 * LINK SHARING. Max-min fairness: every flow gets the same rate on its bottleneck link, whatever
 * its latency (RDMA flows do not wait for round trips; SimGrid's default TCP models favour flows of
 * low latency). A flow first waits for its latency without using any link, then transfers at the
 * rate of its bottleneck. Rates are recomputed whenever a flow starts or ends that shares a link
 * with it directly or through other flows. A link listed k times counts k times: the flow uses k
 * bytes of its capacity per byte moved.
 *
 * ORDER. At equal dates timers come before flows; among equals, the one created first comes first.
 * A timer of zero delay created in a callback fires at the same date, after the timers and flows
 * already due. The order depends only on the sequence of calls, never on addresses or hashing.
 *
 * EXACTNESS. Durations are exact up to the rounding of dates (double). Bytes are rounded to 2^-16:
 * SimGrid counts whole units, so the bridge passes units of 2^-16 byte and scales every capacity by
 * the same power of two, which does not change the digits of a quotient. Flow ends less than 1e-12
 * s apart get the same date. Timer dates are sums of doubles, as a caller would add them up.
 *
 * SEVERAL SIMULATIONS. A process can run any number of them, one after the other: the engine is
 * created once (0.2 ms, in the first weft_bridge_open()) and kept; links are reused with new
 * capacities. SimGrid has no function to reset its clock. The bridge resets it if it finds the
 * clock in memory (see weft_bridge_shortcuts()), so that every simulation gives the same bits as in
 * a process of its own. Otherwise it subtracts the date of opening: after T simulated seconds in
 * this process an event may then be off by up to T * 2^-53 (1e-13 s after 1000 s).
 *
 * COST, measured with SimGrid 3.32 on one core of a small cloud machine: a timer 0.2 us, less at
 * equal dates; a flow 1 us. Each start or end of a flow also recomputes the rates of all flows
 * connected to it through shared links, 0.15 us each (once per date): leave out links that cannot
 * be a bottleneck. The cost of a flow grows with the square of its number of links beyond about a
 * hundred. 2.5 KB per flow in flight. The solver recurses over connected flows: a chain of 65 000
 * works with the usual stack of 8 MB, one of 150 000 does not.
 *
 * POWER. A meter integrates a power that takes one of a few values, with SimGrid's plugin for the
 * energy of hosts: it is a host without work, and each value is the idle power of one of its
 * pstates. Links have no meters. SimGrid 3.32 integrates the power of a link with the load that it
 * finds when a flow of this link starts or ends, so it does not see that a flow gets another rate
 * because of a flow elsewhere.
 *
 * LIMITS. One thread, one simulation at a time (SimGrid has one engine per process). SimGrid does
 * not see the command line, prints nothing, and the signal handlers it installs are removed. No C++
 * exception leaves the bridge. A callback must return: no longjmp through it. */
#pragma once
#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Type of the function that is called when a timer or flow ends, at date weft_bridge_now(). `tag`
 * is that of the timer or flow. The function may create timers and flows. */
typedef void (*weft_bridge_done)(void *user, uint64_t tag);

/* Starts a simulation at date 0 without links. The caller keeps `user`. Fails if a simulation is
 * already open or this SimGrid cannot be set up. */
gboolean weft_bridge_open (weft_bridge_done done, void *user, GError **error);

/* Creates a link of this simulation; ids count from 0. The capacity must be positive and finite.
 * May be called at any time, also in callbacks. */
uint32_t weft_bridge_link (double bytes_per_s);

/* Starts a flow now. `links` is copied and may repeat a link. A flow without links or bytes is a
 * timer of `latency`. A flow of more than 2^47 bytes (140 TB) makes the run fail. */
void weft_bridge_flow (double bytes, const uint32_t *links, uint32_t n_links, double latency,
                       uint64_t tag);

/* Like weft_bridge_flow(), but the flow moves at most `most` bytes per second, even if its links
 * have capacity left. `most` is positive; INFINITY sets no limit. */
void weft_bridge_paced_flow (double bytes, const uint32_t *links, uint32_t n_links, double most,
                             double latency, uint64_t tag);

/* Starts a timer; `delay` must be at least 0. */
void weft_bridge_after (double delay, uint64_t tag);

/* Returns the simulated date: inside a callback, the date of the event; otherwise the date of the
 * last callback, or 0 before the first callback. */
double weft_bridge_now (void);

/* Runs until no timer and no flow is pending. May be called again after new timers or flows were
 * started. Fails with SimGrid's error text. */
gboolean weft_bridge_run (GError **error);

/* Ends the simulation; pending timers and flows are dropped without a callback. */
void weft_bridge_close (void);

/* Creates a meter of this simulation, at the current date and with 0 joules; ids count from 0. It
 * draws watts[0]. There is at least one value, none is negative. */
uint32_t weft_bridge_meter (const double *watts, uint32_t n_watts);

/* From now on the meter draws watts[state]. */
void weft_bridge_meter_set (uint32_t meter, uint32_t state);

/* Joules that the meter has counted until now. */
double weft_bridge_meter_joules (uint32_t meter);

/* Number of timers and flows created since weft_bridge_open(). */
uint64_t weft_bridge_activities (void);

/* Version of the loaded SimGrid library: "3.32". */
const char *weft_bridge_version (void);

/* Switches two shortcuts on (the default) or off, from the next weft_bridge_open() on. Both write
 * to private memory of SimGrid. Before each write, the bridge checks that it has found the right
 * object in memory; if the check fails, the bridge does not use the shortcut. The first shortcut
 * resets SimGrid's clock (SEVERAL SIMULATIONS). The second shortcut keeps SimGrid's list of running
 * activities empty: SimGrid 3.32 scans this whole list whenever an activity ends, so the total cost
 * would be quadratic. (Later versions were not examined.) In the first simulation of a process the
 * results are the same bits with and without the shortcuts. */
void weft_bridge_shortcuts (gboolean wanted);

G_END_DECLS
