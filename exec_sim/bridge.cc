#include "exec_sim/bridge.h"
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <list>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/resource/Model.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/plugins/energy.h>
#include <simgrid/s4u.hpp>
#include <simgrid/version.h>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>
extern "C" {
#include "core/base/error.h"
}

namespace
{
namespace sg = simgrid::s4u;
namespace kernel = simgrid::kernel;
using link_impl = kernel::resource::StandardLinkImpl;
using activity_list = std::list<kernel::activity::ActivityImplPtr>;

/* The following names differ between SimGrid 3.32 and later versions. */
#if SIMGRID_VERSION >= 40000
#define ADD_HOST add_host
#define ADD_LINK add_link
#define DATE_PRECISION "precision/timing"
#define WORK_PRECISION "precision/work-amount"
#else
#define ADD_HOST create_host
#define ADD_LINK create_link
#define DATE_PRECISION "surf/precision"
#define WORK_PRECISION "maxmin/precision"
#endif

/* Units in which SimGrid counts the payload, per byte; see EXACTNESS in bridge.h. */
constexpr double scale = 65536;
constexpr double most_bytes = 0x1p47;

/* The CM02 model is plain max-min sharing once its TCP corrections are off: reverse traffic, window
 * bound (gamma), weight of the round trip (S). The date precision is absolute in seconds; a double
 * resolves 1e-12 s up to 4096 s. https://simgrid.org/doc/latest/Configuring_SimGrid.html */
constexpr const char *settings[] = {
  "network/model:CM02",    "network/crosstraffic:0",     "network/TCP-gamma:1e30",
  "network/weight-S:0",    "network/bandwidth-factor:1", "network/optim:Lazy",
  DATE_PRECISION ":1e-12", WORK_PRECISION ":1e-9",
};

/* A zone without a routing table. It gives SimGrid the route of the flow that is being started,
 * with latency 0. The bridge waits for the latency itself, for two reasons. CM02 shares links in
 * inverse proportion to the latency of routes. And if the latencies of several flows through one
 * link end at the same date, SimGrid 3.32 updates only the other links of the first of these
 * flows. */
struct zone final : kernel::routing::NetZoneImpl {
  std::vector<link_impl *> route;

  explicit zone (const char *name) : NetZoneImpl (name)
  {
  }

  void get_local_route (const kernel::routing::NetPoint *, const kernel::routing::NetPoint *,
                        kernel::routing::Route *into, double *) override
  {
    into->link_list_.insert (into->link_list_.end (), route.begin (), route.end ());
  }
};

struct flow {
  uint64_t seq, tag;
  double bytes;
  std::vector<link_impl *> route;
  sg::CommPtr comm;
  /* a link for this flow alone, whose capacity limits the flow's rate; null: no limit */
  sg::Link *pace;
};

struct timer {
  double date;
  uint64_t seq, tag;
  /* the flow that starts when the timer ends; null: the timer calls the user's function */
  flow *latency_of;
  bool operator<(const timer &b) const /* std heaps keep the greatest element on top */
  {
    return date != b.date ? date > b.date : seq > b.seq;
  }
};

/* SimGrid has one engine per process, so there is one bridge; neither is ever destroyed. */
struct bridge {
  sg::Engine *engine = nullptr;
  zone *hosts = nullptr, *cables = nullptr;
  sg::Host *from = nullptr, *to = nullptr;
  kernel::resource::Model *network = nullptr;
  /* links of all simulations; the current simulation uses the first n_links */
  std::vector<sg::Link *> links;
  std::vector<double> capacity;
  std::vector<sg::Host *> meters; /* of the current simulation */
  std::vector<sg::Link *> paces; /* links that limit the rates of flows and that no flow uses now */

  bool ready = false, wanted = true, open = false, delivering = false;
  /* the list that find_running() found; null: the second shortcut is not used */
  activity_list *running = nullptr;
  double *clock = nullptr;

  weft_bridge_done done = nullptr;
  void *user = nullptr;
  /* SimGrid's date when the simulation was opened; the bridge's date of the last callback */
  double origin = 0, now = 0;
  uint64_t seq = 0;
  uint32_t n_links = 0, n_paces = 0;
  uint64_t n_meters = 0; /* of all simulations: their names differ */
  std::string failure;

  std::vector<timer> timers; /* heap, earliest timer on top */
  kernel::timer::Timer *armed = nullptr;
  double armed_date = 0;

  std::deque<flow> flows; /* a deque, whose elements do not move: SimGrid keeps pointers to flows */
  std::vector<flow *> spare, ended;
  std::vector<sg::CommPtr> grave;
  double grave_date = -1;
};

bridge &
the_bridge ()
{
  static bridge *const b = new bridge;
  return *b;
}

size_t
flows_in_flight (const bridge &b)
{
  return b.flows.size () - b.spare.size ();
}

void fire (bridge &b);

/* Sets one SimGrid timer for the earliest timer of the bridge: a private heap is several times
 * cheaper than SimGrid's timers. */
void
arm (bridge &b)
{
  if (b.delivering || b.timers.empty ())
    return;
  const double date = b.origin + b.timers.front ().date;
  if (b.armed && b.armed_date <= date)
    return;
  if (b.armed)
    b.armed->remove ();
  b.armed_date = date;
  b.armed = kernel::timer::Timer::set (date, [] { fire (the_bridge ()); });
}

/* Takes or creates a link of this capacity. Only lack of memory could throw an exception here, and
 * that ends the program anyway. */
sg::Link *
take_pace (bridge &b, double capacity) noexcept
{
  if (b.paces.empty ())
    return b.cables->get_iface ()
        ->ADD_LINK ("pace " + std::to_string (b.n_paces++), capacity)
        ->seal ();
  sg::Link *pace = b.paces.back ();
  b.paces.pop_back ();
  if (pace->get_bandwidth () != capacity)
    pace->set_bandwidth (capacity);
  return pace;
}

void
give_flow (bridge &b, flow *f)
{
  if (f->pace)
    b.paces.push_back (f->pace);
  f->pace = nullptr;
  b.spare.push_back (f);
}

void
disarm (bridge &b)
{
  for (const timer &t : b.timers)
    if (t.latency_of)
      give_flow (b, t.latency_of);
  b.timers.clear ();
  if (b.armed)
    b.armed->remove ();
  b.armed = nullptr;
}

void
call (bridge &b, double date, uint64_t tag)
{
  b.now = date;
  if (b.done)
    b.done (b.user, tag);
}

/* Starts the transfer of a flow after its latency. No exception may pass through SimGrid's
 * timers. */
void
transfer (bridge &b, flow *f)
{
  b.hosts->route.swap (f->route);
  try {
    f->comm = sg::Comm::sendto_init (b.from, b.to);
    f->comm->set_payload_size ((uint64_t)std::llround (f->bytes * scale));
    f->comm->set_data (f);
    f->comm->start ();
  } catch (const std::exception &e) {
    b.failure = e.what ();
  }
  if (b.running)
    b.running->clear ();
}

void
fire (bridge &b)
{
  const double clock = sg::Engine::get_clock ();

  b.armed = nullptr;
  b.delivering = true;
  while (!b.timers.empty () && b.origin + b.timers.front ().date <= clock) {
    const timer due = b.timers.front ();
    std::pop_heap (b.timers.begin (), b.timers.end ());
    b.timers.pop_back ();
    if (due.latency_of)
      transfer (b, due.latency_of);
    else
      call (b, due.date, due.tag);
  }
  b.delivering = false;
  arm (b);
}

/* Keeps the activity of an ended flow until time advances, because SimGrid still uses it. */
void
bury (bridge &b, flow *f, double clock)
{
  if (clock != b.grave_date)
    b.grave.clear ();
  b.grave_date = clock;
  b.grave.push_back (std::move (f->comm));
  give_flow (b, f);
}

void
deliver (bridge &b)
{
  const double clock = sg::Engine::get_clock ();
  std::vector<flow *> ended;

  ended.swap (b.ended);
  if (ended.size () > 1)
    std::sort (ended.begin (), ended.end (), [] (flow *x, flow *y) { return x->seq < y->seq; });
  b.delivering = true;
  for (flow *f : ended) {
    bury (b, f, clock);
    call (b, clock - b.origin, f->tag);
  }
  b.delivering = false;
  ended.clear ();
  b.ended.swap (ended); /* gives b.ended the allocated memory of `ended` for reuse */
  arm (b);
}

/* Collects the flows that end at one date, then calls back in the order of their creation: SimGrid
 * announces them one by one in the order of its own heap. */
void
flow_ended (const sg::Activity &activity)
{
  bridge &b = the_bridge ();
  flow *f = activity.get_data<flow> ();

  if (!f || activity.get_state () != sg::Activity::State::FINISHED)
    return;
  b.ended.push_back (f);
  if (b.network->get_finished_action_set ()->empty ())
    deliver (b);
}

bool
readable (const void *address, size_t size)
{
  int fd[2];

  if (pipe2 (fd, O_CLOEXEC) != 0)
    return false;
  /* write() is a safe test of an address: for an unmapped address it returns an error instead of
   * raising SIGSEGV. */
  const bool yes = write (fd[1], address, size) == (ssize_t)size;
  close (fd[0]);
  close (fd[1]);
  return yes;
}

/* Finds the private activity list of SimGrid's main actor: the list that holds exactly the one
 * known activity. */
activity_list *
find_running (const bridge &b)
{
  /* Offset in bytes of the activity list in SimGrid's actor object, for SimGrid 3.32 on 64-bit
   * Linux with libstdc++; checked below. */
  constexpr size_t offset = 192;
  struct {
    char *next, *prev;
    size_t size;
  } head;
  struct {
    char *next, *prev;
    void *activity;
  } node;
  int major, minor, patch;
  auto self = (char *(*)())dlsym (RTLD_DEFAULT, "_ZN7simgrid6kernel5actor9ActorImpl4selfEv");

  sg_version_get (&major, &minor, &patch);
  if (!self || !self () || major != 3 || minor != 32 || sizeof (void *) != 8)
    return nullptr;
  const sg::CommPtr probe = sg::Comm::sendto_init (b.from, b.to);
  char *at = self () + offset;
  std::memcpy (&head, at, sizeof head);
  if (head.size != 1 || !head.next || head.next != head.prev || !readable (head.next, sizeof node))
    return nullptr;
  std::memcpy (&node, head.next, sizeof node);
  if (node.next != at || node.prev != at || node.activity != probe->get_impl ())
    return nullptr;
  auto list = reinterpret_cast<activity_list *> (at);
  list->clear ();
  return list;
}

double *
find_clock ()
{
  auto clock = (double *)dlsym (RTLD_DEFAULT, "_ZN7simgrid6kernel10EngineImpl4now_E");
  const double old = sg::Engine::get_clock ();

  if (!clock || *clock != old)
    return nullptr;
  *clock = 1 + old;
  const bool same = sg::Engine::get_clock () == 1 + old;
  *clock = old;
  return same ? clock : nullptr;
}

/* Creates the engine. SimGrid installs handlers for SIGINT and SIGSEGV, which are restored
 * afterwards. The command line passed to SimGrid silences it and disables its clean-up at exit,
 * which would use timers that no longer exist if the program exits during a simulation. */
sg::Engine *
new_engine ()
{
  static char name[] = "weft", silent[] = "--log=root.thres:critical",
              unclean[] = "--cfg=debug/clean-atexit:no";
  static char *argv[] = { name, silent, unclean, nullptr };
  static const int taken[] = { SIGINT, SIGSEGV, SIGBUS };
  struct sigaction before[G_N_ELEMENTS (taken)];
  stack_t stack;
  int argc = G_N_ELEMENTS (argv) - 1;

  for (unsigned i = 0; i < G_N_ELEMENTS (taken); i++)
    sigaction (taken[i], nullptr, &before[i]);
  sigaltstack (nullptr, &stack);
  auto engine = new sg::Engine (&argc, argv);
  sigaltstack (&stack, nullptr);
  for (unsigned i = 0; i < G_N_ELEMENTS (taken); i++)
    sigaction (taken[i], &before[i], nullptr);
  return engine;
}

/* Creates the zones. SimGrid seals its zones when it first runs, so links are created in a zone
 * that is not registered with SimGrid: there they can be added at any time. */
void
make_zones (bridge &b)
{
  b.hosts = new zone ("weft");
  sg::NetZone *root = b.engine->get_netzone_root (), *hosts = b.hosts->get_iface ();
  if (root != hosts) /* in SimGrid before 4.0, the first zone becomes the root zone */
    b.hosts->set_parent (root->get_impl ());
  b.from = hosts->ADD_HOST ("from", 1.0)->seal ();
  b.to = hosts->ADD_HOST ("to", 1.0)->seal ();
  hosts->seal ();
  b.cables = new zone ("weft links");
  b.cables->set_network_model (b.hosts->get_network_model ());
  b.cables->set_cpu_pm_model (b.hosts->get_cpu_pm_model ());
}

void
set_up (bridge &b)
{
  b.engine = new_engine ();
  for (const char *setting : settings)
    sg::Engine::set_config (std::string (setting));
  sg_host_energy_plugin_init (); /* before the first host; hosts without work cost nothing */
  make_zones (b);
  for (auto *model : b.engine->get_all_models ())
    if (model->get_name () == "Network_CM02")
      b.network = model;
  if (!b.network)
    throw std::runtime_error ("it has no network model named Network_CM02");
  sg::Comm::on_completion_cb (flow_ended);
  b.ready = true;
}

void
begin (bridge &b, weft_bridge_done done, void *user)
{
  b.running = b.wanted ? find_running (b) : nullptr;
  b.clock = b.wanted ? find_clock () : nullptr;
  if (b.clock)
    *b.clock = 0;
  b.origin = sg::Engine::get_clock ();
  b.now = 0;
  b.grave_date = -1;
  b.seq = 0;
  b.n_links = 0;
  b.failure.clear ();
  b.done = done;
  b.user = user;
  b.open = true;
}

gboolean
failed (GError **error, const char *what)
{
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "SimGrid %s: %s", weft_bridge_version (), what);
  return FALSE;
}

/* Adds a link. Only lack of memory could throw an exception here, and that ends the program
 * anyway. */
void
plug_link (bridge &b, double capacity) noexcept
{
  if (b.n_links == b.links.size ()) {
    const std::string name = "link " + std::to_string (b.n_links);
    b.links.push_back (b.cables->get_iface ()->ADD_LINK (name, capacity)->seal ());
    b.capacity.push_back (capacity);
  } else if (b.capacity[b.n_links] != capacity) {
    b.links[b.n_links]->set_bandwidth (capacity);
    b.capacity[b.n_links] = capacity;
  }
}

/* Creates the host of a meter. All its pstates have the same speed, which nothing uses. Only lack
 * of memory could throw an exception here, and that ends the program anyway. */
void
plug_meter (bridge &b, const double *watts, uint32_t n_watts) noexcept
{
  std::string ranges;

  for (uint32_t i = 0; i < n_watts; i++) {
    char text[64];
    g_ascii_dtostr (text, sizeof text, watts[i]);
    ranges += (i ? "," : "") + std::string (text) + ":" + text;
  }
  auto *host = b.cables->get_iface ()->ADD_HOST ("meter " + std::to_string (b.n_meters++),
                                                 std::vector<double> (n_watts, 1.0));
  b.meters.push_back (host->set_property ("wattage_per_state", ranges)->seal ());
}

/* Ends all meters. The plugin keeps the date of the last change of a host, and the clock of the
 * next simulation starts again at 0, so no host is used twice. */
void
unplug_meters (bridge &b)
{
  for (sg::Host *host : b.meters)
    host->destroy ();
  b.meters.clear ();
}

flow *
take_flow (bridge &b)
{
  if (b.spare.empty ()) {
    b.flows.emplace_back ();
    return &b.flows.back ();
  }
  flow *f = b.spare.back ();
  b.spare.pop_back ();
  return f;
}

void
start_timer (bridge &b, double delay, uint64_t tag, flow *latency_of)
{
  b.timers.push_back ({ b.now + delay, b.seq++, tag, latency_of });
  std::push_heap (b.timers.begin (), b.timers.end ());
  arm (b);
}
} // namespace

extern "C" {
gboolean
weft_bridge_open (weft_bridge_done done, void *user, GError **error)
{
  bridge &b = the_bridge ();

  if (b.open)
    return failed (error, "a simulation is open already, close it first");
  if (b.engine && !b.ready)
    return failed (error, "it could not be set up earlier in this process");
  if (flows_in_flight (b) > 0)
    return failed (error, "flows of the simulation before this one could not be ended");
  try {
    if (!b.ready)
      set_up (b);
    begin (b, done, user);
  } catch (const std::exception &e) {
    return failed (error, e.what ());
  }
  return TRUE;
}

uint32_t
weft_bridge_link (double bytes_per_s)
{
  bridge &b = the_bridge ();
  const double capacity = bytes_per_s * scale;

  g_assert (b.open && bytes_per_s > 0 && std::isfinite (capacity));
  plug_link (b, capacity);
  return b.n_links++;
}

void
weft_bridge_flow (double bytes, const uint32_t *links, uint32_t n_links, double latency,
                  uint64_t tag)
{
  weft_bridge_paced_flow (bytes, links, n_links, INFINITY, latency, tag);
}

void
weft_bridge_paced_flow (double bytes, const uint32_t *links, uint32_t n_links, double most,
                        double latency, uint64_t tag)
{
  bridge &b = the_bridge ();

  g_assert (b.open && bytes >= 0 && most > 0 && latency >= 0 && std::isfinite (latency));
  if (n_links == 0 || bytes * scale < 0.5) {
    weft_bridge_after (latency, tag);
    return;
  }
  if (bytes > most_bytes) {
    b.failure = "a flow of " + std::to_string (bytes) + " bytes, more than 2^47";
    return;
  }
  flow *f = take_flow (b);
  f->tag = tag;
  f->bytes = bytes;
  f->route.clear ();
  for (uint32_t i = 0; i < n_links; i++) {
    g_assert (links[i] < b.n_links);
    f->route.push_back (b.links[links[i]]->get_impl ());
  }
  f->pace = std::isfinite (most) ? take_pace (b, most * scale) : nullptr;
  if (f->pace)
    f->route.push_back (f->pace->get_impl ());
  f->seq = b.seq;
  if (latency > 0) {
    start_timer (b, latency, tag, f);
    return;
  }
  b.seq++;
  transfer (b, f);
}

void
weft_bridge_after (double delay, uint64_t tag)
{
  bridge &b = the_bridge ();

  g_assert (b.open && delay >= 0 && std::isfinite (delay));
  start_timer (b, delay, tag, nullptr);
}

uint32_t
weft_bridge_meter (const double *watts, uint32_t n_watts)
{
  bridge &b = the_bridge ();

  g_assert (b.open && n_watts > 0);
  plug_meter (b, watts, n_watts);
  return (uint32_t)b.meters.size () - 1;
}

void
weft_bridge_meter_set (uint32_t meter, uint32_t state)
{
  bridge &b = the_bridge ();

  g_assert (b.open && meter < b.meters.size ());
  b.meters[meter]->set_pstate ((int)state);
}

double
weft_bridge_meter_joules (uint32_t meter)
{
  bridge &b = the_bridge ();

  g_assert (b.open && meter < b.meters.size ());
  return sg_host_get_consumed_energy (b.meters[meter]);
}

double
weft_bridge_now (void)
{
  return the_bridge ().now;
}

gboolean
weft_bridge_run (GError **error)
{
  bridge &b = the_bridge ();

  g_assert (b.open && !b.delivering);
  try {
    b.engine->run ();
  } catch (const std::exception &e) {
    b.failure = e.what ();
  }
  b.grave.clear ();
  if (b.failure.empty () && (flows_in_flight (b) > 0 || !b.timers.empty ()))
    b.failure = "it stopped before all flows had ended";
  return b.failure.empty () ? TRUE : failed (error, b.failure.c_str ());
}

void
weft_bridge_close (void)
{
  bridge &b = the_bridge ();

  if (!b.open)
    return;
  g_assert (!b.delivering);
  b.done = nullptr;
  disarm (b);
  /* SimGrid cannot drop a flow, so simulate until all flows have ended, without callbacks */
  if (flows_in_flight (b) > 0)
    weft_bridge_run (nullptr);
  unplug_meters (b);
  b.open = false;
}

uint64_t
weft_bridge_activities (void)
{
  return the_bridge ().seq;
}

const char *
weft_bridge_version (void)
{
  static const std::string version = [] {
    int major, minor, patch;
    sg_version_get (&major, &minor, &patch);
    return std::to_string (major) + "." + std::to_string (minor) +
           (patch ? "." + std::to_string (patch) : "");
  }();
  return version.c_str ();
}

void
weft_bridge_shortcuts (gboolean wanted)
{
  the_bridge ().wanted = wanted;
}
}
