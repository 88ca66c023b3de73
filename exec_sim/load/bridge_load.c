/* Loads the bridge on demand. Loading SimGrid and its dependencies takes 18 ms (Debian's 3.32 is
 * built with ns-3), and most commands do not simulate: bridge.cc is a separate module that the
 * first call opens with dlopen(), and this file provides the same functions to the rest of Weft.
 * The module is never closed, because SimGrid cannot be unloaded. */
#include "core/base/error.h"
#include "core/base/home.h"
#include "exec_sim/bridge.h"
#include <dlfcn.h>
#include <string.h>

/* Columns: name of the function, type of the return value, parameters, arguments. */
#define CALL_LIST(X)                                                                               \
  X (link, uint32_t, (double bytes_per_s), (bytes_per_s))                                          \
  X (flow, void,                                                                                   \
     (double bytes, const uint32_t *links, uint32_t n_links, double latency, uint64_t tag),        \
     (bytes, links, n_links, latency, tag))                                                        \
  X (paced_flow, void,                                                                             \
     (double bytes, const uint32_t *links, uint32_t n_links, double most, double latency,          \
      uint64_t tag),                                                                               \
     (bytes, links, n_links, most, latency, tag))                                                  \
  X (after, void, (double delay, uint64_t tag), (delay, tag))                                      \
  X (meter, uint32_t, (const double *watts, uint32_t n_watts), (watts, n_watts))                   \
  X (meter_set, void, (uint32_t meter, uint32_t state), (meter, state))                            \
  X (meter_joules, double, (uint32_t meter), (meter))                                              \
  X (now, double, (void), ())                                                                      \
  X (run, gboolean, (GError * *error), (error))                                                    \
  X (close, void, (void), ())                                                                      \
  X (activities, uint64_t, (void), ())                                                             \
  X (version, const char *, (void), ())                                                            \
  X (shortcuts, void, (gboolean wanted), (wanted))

struct calls {
  gboolean (*open) (weft_bridge_done done, void *user, GError **error);
#define CALL(name, returns, parameters, arguments) returns (*name) parameters;
  CALL_LIST (CALL)
#undef CALL
};

/* The functions of the loaded module. load() writes this table once. */
static struct calls bridge;

/* Copies the address through memory: C has no cast from an object pointer to a function pointer. */
static gboolean
find (void *module, const char *name, void *call, size_t size)
{
  void *symbol = module ? dlsym (module, name) : NULL;

  memcpy (call, &symbol, size);
  return symbol != NULL;
}

static gboolean
load (GError **error)
{
  struct calls all;

  if (bridge.open)
    return TRUE;
  const char *prefix = weft_home_prefix ();
  g_autofree char *path = prefix ? g_build_filename (prefix, WEFT_BRIDGE_INSTALLED, NULL)
                                 : g_strdup (WEFT_BRIDGE_MODULE);
  void *module = dlopen (path, RTLD_NOW | RTLD_LOCAL);
  gboolean ok = find (module, "weft_bridge_open", &all.open, sizeof all.open);
#define CALL(name, ...) ok = ok && find (module, "weft_bridge_" #name, &all.name, sizeof all.name);
  CALL_LIST (CALL)
#undef CALL
  if (ok)
    bridge = all;
  else
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "SimGrid cannot be used: %s", dlerror ());
  return ok;
}

gboolean
weft_bridge_open (weft_bridge_done done, void *user, GError **error)
{
  return load (error) && bridge.open (done, user, error);
}

/* Without SimGrid weft_bridge_open() returns the error, and the other calls do nothing. */
#define CALL(name, returns, parameters, arguments)                                                 \
  returns weft_bridge_##name parameters                                                            \
  {                                                                                                \
    if (!load (NULL))                                                                              \
      return (returns) 0;                                                                          \
    return bridge.name arguments;                                                                  \
  }
CALL_LIST (CALL)
