/* Hostile peers of the rendezvous: strangers that only connect, and processes of the job that
 * break its rules. They can use only a bounded amount of memory, cannot block a process, and
 * cannot end the process of rank 0. */
#include "launch/owner.h"
#include "launch/store.h"
#include "tests/launch/cast.h"
#include "tests/runner/processes.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *
meet_twice (weft_rendezvous *r, GError **error)
{
  return cast_barrier (r, "one", error) && cast_barrier (r, "two", error) ? g_strdup ("met") : NULL;
}

/* Opens a store on 127.0.0.1 for raw clients, with some options set by the test. */
static weft_store *
open_store (const struct weft_store_options *some)
{
  struct weft_store_options options = *some;
  g_autoptr (GError) error = NULL;

  options.token = "the job";
  options.host = "127.0.0.1";
  options.ranks_each = 1;
  options.seconds = 30;
  weft_store *store = weft_store_open (0, &options, &error);
  if (!store)
    fail_msg ("%s", error->message);
  return store;
}

static void
assert_kind (const struct weft_frame *f, enum weft_frame_kind kind)
{
  if (f->kind != kind)
    fail_msg ("found %s \"%.*s\", wanted %s", weft_frame_words[f->kind], (int) f->value_bytes,
              (const char *) f->value, weft_frame_words[kind]);
}

/* Connects n raw clients as the processes of a job, and receives the welcome frame that each of
 * them gets. */
static void
admit_all (struct raw_client *raw, uint32_t n, const weft_store *store)
{
  struct weft_frame f;

  for (uint32_t i = 0; i < n; i++) {
    raw[i] = raw_connect (weft_store_port (store), "127.0.0.1");
    assert_true (raw_hello (&raw[i], i, n, &f));
    assert_kind (&f, WEFT_FRAME_ADMITTED);
  }
  for (uint32_t i = 0; i < n; i++) {
    assert_true (raw_next (&raw[i], &f));
    assert_kind (&f, WEFT_FRAME_WELCOME);
  }
}

static gboolean
send_key (struct raw_client *raw, enum weft_frame_kind kind, const char *key, const void *value,
          uint32_t bytes)
{
  const struct weft_frame f = { .kind = kind,
                                .key = key,
                                .key_bytes = (uint32_t) strlen (key),
                                .value = value,
                                .value_bytes = bytes };
  return raw_send (raw, &f);
}

/* ------------------------------------------------------------------------- strangers */

#define IDLE (WEFT_STORE_MOST_STRANGERS + 72)

static void
connect_idle (GSocketConnection *idle[IDLE], uint16_t port, const char *from)
{
  for (unsigned i = 0; i < IDLE; i++)
    idle[i] = cast_connect (port, from);
}

static void
close_idle (GSocketConnection *idle[IDLE])
{
  for (unsigned i = 0; i < IDLE; i++)
    g_object_unref (idle[i]);
}

static void
idle_connections_keep_out_no_process (void **state)
{
  struct cast c = cast_of (3, 20, meet_twice);
  GSocketConnection *idle[IDLE];

  (void) state;
  cast_start (&c, 0);
  connect_idle (idle, c.part[0].place.port, "127.0.0.1");
  cast_start (&c, 1);
  cast_start (&c, 2);
  cast_finish (&c);
  for (uint32_t i = 0; i < c.n; i++)
    cast_assert_said (&c, i, "met");
  close_idle (idle);
  cast_clear (&c);
}

/* A thread that connects again and again, and keeps the last IDLE connections open. */
struct flood {
  uint16_t port;
  gint over; /* the test sets `over` to end the thread; atomic */
};

static gpointer
flood_main (gpointer data)
{
  struct flood *flood = data;
  GSocketConnection *idle[IDLE] = { NULL };

  for (unsigned i = 0; !g_atomic_int_get (&flood->over); i = (i + 1) % IDLE) {
    g_clear_object (&idle[i]);
    idle[i] = cast_connect (flood->port, "127.0.0.2");
  }
  for (unsigned i = 0; i < IDLE; i++)
    g_clear_object (&idle[i]);
  return NULL;
}

static void
a_flood_of_connections_keeps_out_no_process (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 3 });
  struct flood flood = { .port = weft_store_port (store) };
  GThread *thread = g_thread_new ("flood", flood_main, &flood);
  struct raw_client raw[3];

  (void) state;
  admit_all (raw, 3, store);
  g_atomic_int_set (&flood.over, 1);
  g_thread_join (thread);
  for (unsigned i = 0; i < 3; i++)
    raw_close (&raw[i]);
  weft_store_close (store, 0);
}

static void
strangers_of_one_address_evict_no_stranger_of_another (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  struct raw_client raw = raw_connect (weft_store_port (store), "127.0.0.1");
  GSocketConnection *idle[IDLE];
  struct weft_frame f;

  (void) state;
  connect_idle (idle, weft_store_port (store), "127.0.0.2");
  assert_true (raw_hello (&raw, 1, 2, &f));
  assert_kind (&f, WEFT_FRAME_ADMITTED);
  raw_close (&raw);
  close_idle (idle);
  weft_store_close (store, 0);
}

static void
a_stranger_has_a_deadline_even_if_it_sends_slowly (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2, .stranger_seconds = 0.2 });
  struct raw_client idle = raw_connect (weft_store_port (store), "127.0.0.1"),
                    slow = raw_connect (weft_store_port (store), "127.0.0.1");
  GSocket *socket = g_socket_connection_get_socket (slow.connection);
  static const char start[] = { 100, 0, 0, 0 };
  struct weft_frame f;

  (void) state;
  g_socket_set_blocking (socket, FALSE);
  /* The client `slow` sends a frame one byte at a time, until the store has closed the
   * connection. */
  for (unsigned i = 0; i < 1000; i++) {
    g_autoptr (GError) error = NULL;
    char answer;
    g_socket_send (socket, start + (i % 4 ? 1 : 0), 1, NULL, NULL);
    if (g_socket_receive (socket, &answer, 1, NULL, &error) == 0 ||
        !g_error_matches (error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK))
      break;
    assert_int_not_equal (i, 999);
    g_usleep (10000);
  }
  assert_false (raw_next (&idle, &f));
  raw_close (&idle);
  raw_close (&slow);
  weft_store_close (store, 0);
}

/* ------------------------------------------------------------------------------ users */

#define NOBODY 65534

/* Acts as a store that admits the first client that connects. Runs until the test kills the
 * process. */
static int
be_store (uint16_t port)
{
  const struct weft_frame admitted = { .kind = WEFT_FRAME_ADMITTED };
  g_autoptr (GSocketListener) listener = g_socket_listener_new ();
  struct raw_client raw = { NULL, g_byte_array_new (), 0 };

  if (!g_socket_listener_add_inet_port (listener, port, NULL, NULL))
    return 2;
  raw.connection = g_socket_listener_accept (listener, NULL, NULL, NULL);
  raw_send (&raw, &admitted);
  for (;;)
    g_usleep (1000000);
}

static int
be_rank_1 (uint16_t port)
{
  struct raw_client raw = raw_connect (port, "127.0.0.1");
  struct weft_frame f;
  gboolean admitted = raw_hello (&raw, 1, 2, &f);

  raw_close (&raw);
  return admitted;
}

/* The main function of a process of another user, which the test starts with "store PORT" or
 * "rank_1 PORT". */
static int
be_process (int argc, char **argv)
{
  if (argc < 3)
    return WEFT_TESTS_RUN;
  uint16_t port = (uint16_t) g_ascii_strtoull (argv[2], NULL, 10);
  if (setuid (NOBODY))
    return 2;
  return g_str_equal (argv[1], "store") ? be_store (port) : be_rank_1 (port);
}

static struct process
start_as_nobody (const char *task, uint16_t port)
{
  g_autofree char *words = g_strdup_printf ("%s %u", task, port);

  return process_start (words, WEFT_LAUNCHER_TORCHRUN, 2, 1, port);
}

static void
another_user_is_no_rank_0 (void **state)
{
  struct cast c = cast_of (2, 20, meet_twice);

  (void) state;
  if (geteuid () != 0)
    skip (); /* skipped unless root runs the test, because only root can become another user */
  struct process other = start_as_nobody ("store", c.part[1].place.port);
  cast_start (&c, 1);
  cast_finish (&c);
  cast_assert_failed (&c, 1, "found a rendezvous of another user, wanted that of the job");
  process_clear (&other);
  cast_clear (&c);
}

static void
without_a_secret_another_user_takes_no_place (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  struct raw_client raw[2];

  (void) state;
  if (geteuid () != 0) {
    weft_store_close (store, 0);
    skip (); /* skipped unless root runs the test, because only root can become another user */
  }
  struct process other = start_as_nobody ("rank_1", weft_store_port (store));
  process_wait (&other);
  assert_int_equal (other.status, 0);
  process_clear (&other);
  admit_all (raw, 2, store);
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

static void
the_owner_of_a_connection_is_known (void **state)
{
  static const char *const hosts[] = { "127.0.0.1", "::1" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (hosts); i++) {
    g_autoptr (GSocketListener) listener = g_socket_listener_new ();
    g_autoptr (GSocketAddress) at = g_inet_socket_address_new_from_string (hosts[i], 0),
                               bound = NULL;
    g_autoptr (GSocketClient) client = g_socket_client_new ();
    uid_t user = 1;
    if (!g_socket_listener_add_address (listener, at, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP,
                                        NULL, &bound, NULL))
      continue; /* skips IPv6 on a machine without it */
    g_autoptr (GSocketConnection) theirs =
        g_socket_client_connect (client, G_SOCKET_CONNECTABLE (bound), NULL, NULL);
    g_autoptr (GSocketConnection) ours = g_socket_listener_accept (listener, NULL, NULL, NULL);
    assert_int_equal (weft_owner_find (g_socket_connection_get_socket (ours), &user),
                      WEFT_OWNER_KNOWN);
    assert_int_equal (user, geteuid ());
  }
}

/* -------------------------------------------------------------------------- addresses */

static void
the_store_listens_on_the_address_of_its_host_only (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  g_autoptr (GSocketClient) client = g_socket_client_new ();
  GSocketConnection *c, *other;

  (void) state;
  assert_false (weft_store_is_everywhere (store));
  c = g_socket_client_connect_to_host (client, "127.0.0.1", weft_store_port (store), NULL, NULL);
  other =
      g_socket_client_connect_to_host (client, "127.0.0.2", weft_store_port (store), NULL, NULL);
  assert_non_null (c);
  assert_null (other);
  g_object_unref (c);
  weft_store_close (store, 0);
}

/* ----------------------------------------------------------------------------- values */

#define MOST WEFT_FRAME_MOST_VALUE

static char *
set_most (weft_rendezvous *r, GError **error)
{
  g_autoptr (GError) refused = NULL;
  g_autofree uint8_t *block = g_malloc0 (MOST + 1);

  if (cast_process (r) == 1) {
    block[MOST - 1] = 7;
    g_autoptr (GBytes) most = g_bytes_new (block, MOST), more = g_bytes_new (block, MOST + 1);
    g_autoptr (GPtrArray) all = weft_rendezvous_gather (r, "meeting", more, 1, &refused);
    g_assert (!all && refused);
    g_clear_error (&refused);
    if (weft_rendezvous_set (r, "more", more, &refused))
      return g_strdup ("a value that is too large was set");
    if (!weft_rendezvous_set (r, "most", most, error))
      return NULL;
  }
  g_autoptr (GBytes) value = weft_rendezvous_get (r, "most", error);
  if (!value || !cast_barrier (r, "the end", error))
    return NULL;
  gsize n;
  const uint8_t *data = g_bytes_get_data (value, &n);
  return g_strdup_printf ("%" G_GSIZE_FORMAT " bytes, the last is %u%s%s", n, data[n - 1],
                          refused ? "; " : "", refused ? refused->message : "");
}

static void
the_largest_value_that_can_be_set_can_be_got (void **state)
{
  struct cast c = cast_of (2, 60, set_most);

  (void) state;
  cast_run (&c);
  cast_assert_said (&c, 0, "33554432 bytes, the last is 7");
  cast_assert_said (&c, 1,
                    "33554432 bytes, the last is 7; "
                    "more: found 33554433 bytes, wanted at most 33554432 bytes");
  cast_clear (&c);
}

/* A client that is not Weft announces a value of 40 MiB, above the limit of 32 MiB. The store
 * closes the connection and stops the job; the process of rank 0 survives. */
static void
a_value_above_the_limit_ends_the_connection_and_not_rank_0 (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  static const uint8_t head[] = {
    7 + 3, 0, 0x80, 2, WEFT_FRAME_SET, 0, 0, 0, 0, 3, 0, 'k', 'e', 'y'
  };
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  g_socket_send (g_socket_connection_get_socket (raw[1].connection), (const char *) head,
                 sizeof head, NULL, NULL);
  assert_false (raw_next (&raw[1], &f));
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_STOP);
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

static void
exchanged_values_have_a_limit_together (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  g_autofree uint8_t *block = g_malloc0 (MOST);
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  assert_true (send_key (&raw[0], WEFT_FRAME_EXCHANGE, "all", block, MOST / 2));
  send_key (&raw[1], WEFT_FRAME_EXCHANGE, "all", block, MOST / 2);
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_STOP);
  g_autofree char *why = weft_wire_text (f.value, f.value_bytes);
  assert_string_equal (why,
                       "all: found 33554448 bytes of all processes, wanted at most 33554432 bytes");
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

/* ----------------------------------------------------------------------------- memory */

/* Returns the peak memory of the test's process in MiB. */
static uint64_t
peak_memory (void)
{
  g_autofree char *text = NULL;

  g_file_get_contents ("/proc/self/status", &text, NULL, NULL);
  const char *at = text ? strstr (text, "VmHWM:") : NULL;
  return at ? g_ascii_strtoull (at + strlen ("VmHWM:"), NULL, 10) >> 10 : 0;
}

/* Sends a request up to `most` times, and stops if the store has read nothing for a second. */
static void
send_until_blocked (struct raw_client *raw, const struct weft_frame *f, unsigned most)
{
  GSocket *socket = g_socket_connection_get_socket (raw->connection);
  gboolean sent = TRUE;

  g_socket_set_timeout (socket, 1);
  for (unsigned i = 0; i < most && sent; i++)
    sent = raw_send (raw, f);
}

static void
a_process_that_does_not_read_costs_little_memory (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  const struct weft_frame get = { .kind = WEFT_FRAME_GET, .key = "key", .key_bytes = 3 };
  g_autofree uint8_t *block = g_malloc0 (8 << 20);
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  assert_true (send_key (&raw[1], WEFT_FRAME_SET, "key", block, 8 << 20));
  assert_true (raw_send (&raw[1], &get));
  assert_true (raw_next (&raw[1], &f));
  assert_kind (&f, WEFT_FRAME_VALUE);
  uint64_t before = peak_memory ();
  /* The client asks 500 times for a value of 8 MiB and reads nothing. The answers are 4,000 MiB,
   * most of which the store must not hold in memory. */
  send_until_blocked (&raw[1], &get, 500);
  assert_true (send_key (&raw[0], WEFT_FRAME_GET, "key", NULL, 0));
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_VALUE);
  if (peak_memory () > before + 200)
    fail_msg ("%u MiB more", (unsigned) (peak_memory () - before));
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

static void
answers_that_wait_are_sent_when_they_are_read (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  const struct weft_frame get = { .kind = WEFT_FRAME_GET, .key = "key", .key_bytes = 3 };
  g_autofree uint8_t *block = g_malloc0 (2 << 20);
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  assert_true (send_key (&raw[1], WEFT_FRAME_SET, "key", block, 2 << 20));
  for (int i = 0; i < 20; i++)
    assert_true (raw_send (&raw[1], &get));
  for (int i = 0; i < 20; i++) {
    assert_true (raw_next (&raw[1], &f));
    assert_int_equal (f.value_bytes, 2 << 20);
  }
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

/* Rank 1 sends up to `most` requests of one kind, each with another key and a value of `bytes`
 * bytes. The store is limited to 4 MiB, so the job must end, and rank 0 must receive the reason. */
static void
assert_limited (enum weft_frame_kind kind, uint32_t bytes, uint32_t most)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2, .most_bytes = 4 << 20 });
  g_autofree uint8_t *block = g_malloc0 (bytes + 1);
  struct raw_client raw[2];
  struct weft_frame f;
  gboolean sent = TRUE;

  admit_all (raw, 2, store);
  for (uint32_t i = 0; i < most && sent; i++) {
    g_autofree char *key = g_strdup_printf ("key %u", i);
    sent = send_key (&raw[1], kind, key, block, bytes);
  }
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_STOP);
  g_autofree char *why = weft_wire_text (f.value, f.value_bytes);
  assert_string_equal (why, "rank 1 on elsewhere: found more than 4194304 bytes in the rendezvous");
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

static void
a_process_that_fills_the_memory_ends_the_job_and_is_named (void **state)
{
  (void) state;
  assert_limited (WEFT_FRAME_SET, 1 << 20, 10);
  assert_limited (WEFT_FRAME_SET, 0, 100000);
  assert_limited (WEFT_FRAME_EXCHANGE, 1 << 19, 20);
  assert_limited (WEFT_FRAME_EXCHANGE, 0, 100000);
  /* one frame that announces more bytes than the limit: refused before all bytes have arrived */
  assert_limited (WEFT_FRAME_SET, 5 << 20, 1);
}

static void
a_value_that_replaces_another_costs_no_more_memory (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2, .most_bytes = 4 << 20 });
  g_autofree uint8_t *block = g_malloc0 (1 << 20);
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  for (int i = 0; i < 20; i++) {
    assert_true (send_key (&raw[0], WEFT_FRAME_SET, "key", block, 1 << 20));
    assert_true (send_key (&raw[0], WEFT_FRAME_EXCHANGE, "step", block, 1 << 20));
    assert_true (send_key (&raw[1], WEFT_FRAME_EXCHANGE, "step", NULL, 0));
    assert_true (raw_next (&raw[0], &f));
    assert_kind (&f, WEFT_FRAME_EXCHANGED);
    assert_true (raw_next (&raw[1], &f));
  }
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

/* A report asks every process for its status. A process that never answers must receive only one
 * such request. */
static void
reports_ask_a_silent_process_once (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  const struct weft_frame report = { .kind = WEFT_FRAME_REPORT };
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  for (int i = 0; i < 5; i++) {
    assert_true (raw_send (&raw[1], &report));
    assert_true (raw_next (&raw[1], &f));
    assert_kind (&f, WEFT_FRAME_ANSWER);
  }
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_ASK_STATUS);
  assert_true (send_key (&raw[1], WEFT_FRAME_SET, "key", "value", 5));
  assert_true (send_key (&raw[0], WEFT_FRAME_GET, "key", NULL, 0));
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_VALUE);
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

/* ------------------------------------------------------------------------------ text */

/* Text of a hostile peer: an escape sequence of terminals, the same sequence with U+009B instead
 * of ESC [, a reversal of the text direction (U+202E), a line end, and invalid UTF-8. TAMED is
 * the text that a message may contain. */
#define EVIL "a\033[31m \302\233 31m \342\200\256 b\r\n\377\303\266"
#define TAMED "a [31m   31m   b  \357\277\275\303\266"

static void
text_of_peers_cannot_control_a_terminal (void **state)
{
  g_autofree char *text = weft_wire_text (EVIL, strlen (EVIL)),
                  *cut = weft_wire_text ("\303\266", 1), *none = weft_wire_text (NULL, 0);

  (void) state;
  assert_string_equal (text, TAMED);
  assert_string_equal (cut, "\357\277\275");
  assert_string_equal (none, "");
}

static void
what_a_process_says_is_told_without_control_characters (void **state)
{
  weft_store *store = open_store (&(struct weft_store_options){ .n = 2 });
  struct raw_client raw[2];
  struct weft_frame f;

  (void) state;
  admit_all (raw, 2, store);
  assert_true (send_key (&raw[1], WEFT_FRAME_ABORT, "", EVIL, strlen (EVIL)));
  assert_true (raw_next (&raw[0], &f));
  assert_kind (&f, WEFT_FRAME_STOP);
  g_autofree char *why = g_strndup (f.value, f.value_bytes);
  assert_string_equal (why, "rank 1 on elsewhere has failed: " TAMED);
  raw_close (&raw[0]);
  raw_close (&raw[1]);
  weft_store_close (store, 0);
}

/* Acts as a store of other software, which refuses a process with a message that contains control
 * characters. */
static gboolean
refuse_evilly (GSocketService *service, GSocketConnection *c, GObject *source, gpointer data)
{
  const struct weft_frame f = { .kind = WEFT_FRAME_REFUSED,
                                .value = EVIL,
                                .value_bytes = sizeof EVIL - 1 };
  g_autoptr (GByteArray) out = g_byte_array_new ();

  (void) service, (void) source, (void) data;
  weft_frame_put (out, &f);
  g_socket_send (g_socket_connection_get_socket (c), (char *) out->data, out->len, NULL, NULL);
  return FALSE;
}

static void
what_a_store_says_is_told_without_control_characters (void **state)
{
  g_autoptr (GSocketService) service = g_threaded_socket_service_new (4);
  struct cast c = cast_of (2, 5, meet_twice);

  (void) state;
  assert_true (g_socket_listener_add_inet_port (G_SOCKET_LISTENER (service), c.part[1].place.port,
                                                NULL, NULL));
  g_signal_connect (service, "run", G_CALLBACK (refuse_evilly), NULL);
  cast_start (&c, 1);
  for (int i = 0; i < 1000 && !c.part[1].error; i++) {
    g_main_context_iteration (NULL, FALSE);
    g_usleep (5000);
  }
  cast_finish (&c);
  assert_string_equal (c.part[1].error->message, TAMED);
  g_socket_listener_close (G_SOCKET_LISTENER (service));
  cast_clear (&c);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (idle_connections_keep_out_no_process),
  cmocka_unit_test (a_flood_of_connections_keeps_out_no_process),
  cmocka_unit_test (strangers_of_one_address_evict_no_stranger_of_another),
  cmocka_unit_test (a_stranger_has_a_deadline_even_if_it_sends_slowly),
  cmocka_unit_test (without_a_secret_another_user_takes_no_place),
  cmocka_unit_test (another_user_is_no_rank_0),
  cmocka_unit_test (the_owner_of_a_connection_is_known),
  cmocka_unit_test (the_store_listens_on_the_address_of_its_host_only),
  cmocka_unit_test (the_largest_value_that_can_be_set_can_be_got),
  cmocka_unit_test (a_value_above_the_limit_ends_the_connection_and_not_rank_0),
  cmocka_unit_test (exchanged_values_have_a_limit_together),
  cmocka_unit_test (a_process_that_does_not_read_costs_little_memory),
  cmocka_unit_test (answers_that_wait_are_sent_when_they_are_read),
  cmocka_unit_test (a_process_that_fills_the_memory_ends_the_job_and_is_named),
  cmocka_unit_test (a_value_that_replaces_another_costs_no_more_memory),
  cmocka_unit_test (reports_ask_a_silent_process_once),
  cmocka_unit_test (text_of_peers_cannot_control_a_terminal),
  cmocka_unit_test (what_a_process_says_is_told_without_control_characters),
  cmocka_unit_test (what_a_store_says_is_told_without_control_characters),
};

WEFT_TESTS (tests, .begin = be_process)
