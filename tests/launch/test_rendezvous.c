/* The rendezvous of processes: values reach all processes, and errors name missing processes. */
#include "launch/rendezvous.h"
#include "launch/store.h"
#include "launch/wire.h"
#include "tests/launch/cast.h"
#include "tests/runner/processes.h"
#include "train/processes.h"
#include <gio/gio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- values */

static char *
get_what_the_last_has_set (weft_rendezvous *r, GError **error)
{
  g_autoptr (GBytes) mine = g_bytes_new_static ("a value", 7);

  if (cast_process (r) + 1 == weft_rendezvous_place (r)->n) {
    g_usleep (50000);
    if (!weft_rendezvous_set (r, "key", mine, error))
      return NULL;
  }
  g_autoptr (GBytes) value = weft_rendezvous_get (r, "key", error);
  if (!value || !cast_barrier (r, "the end", error))
    return NULL;
  return g_strndup (g_bytes_get_data (value, NULL), g_bytes_get_size (value));
}

static void
a_value_of_one_is_got_by_all_who_wait_for_it (void **state)
{
  struct cast c = cast_of (4, 20, get_what_the_last_has_set);

  (void) state;
  cast_run (&c);
  for (uint32_t i = 0; i < c.n; i++)
    cast_assert_said (&c, i, "a value");
  cast_clear (&c);
}

/* Pointer to weft_rendezvous_all_gather() or weft_rendezvous_gather(). */
typedef GPtrArray *meeting (weft_rendezvous *r, const char *key, GBytes *value, double seconds,
                            GError **error);

/* Exchanges a value between all processes ten times: the number of this process, or NULL if
 * `brings` is FALSE. Returns the result of the last exchange as a text with one character per
 * process: its number, or '-' for NULL. The caller frees it. */
static char *
often (meeting *meet, weft_rendezvous *r, gboolean brings, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  uint8_t number = (uint8_t) ('0' + cast_process (r));

  for (int i = 0; i < 10; i++) {
    g_autoptr (GBytes) mine = brings ? g_bytes_new (&number, 1) : NULL;
    g_autoptr (GPtrArray) all = meet (r, "again", mine, 0, error);
    if (!all)
      return NULL;
    for (uint32_t p = 0; p < all->len && i == 9; p++)
      g_string_append_c (text,
                         all->pdata[p] ? *(char *) g_bytes_get_data (all->pdata[p], NULL) : '-');
  }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static char *
meet_often (weft_rendezvous *r, GError **error)
{
  return often (weft_rendezvous_all_gather, r, cast_process (r) % 2, error);
}

static void
all_wait_for_all_and_get_what_each_has_brought (void **state)
{
  struct cast c = cast_of (6, 20, meet_often);

  (void) state;
  cast_run (&c);
  for (uint32_t i = 0; i < c.n; i++)
    cast_assert_said (&c, i, "-1-3-5");
  cast_clear (&c);
}

static char *
gather_often (weft_rendezvous *r, GError **error)
{
  return often (weft_rendezvous_gather, r, TRUE, error);
}

static void
what_is_gathered_the_first_alone_gets (void **state)
{
  struct cast c = cast_of (4, 20, gather_often);

  (void) state;
  cast_run (&c);
  for (uint32_t i = 0; i < c.n; i++)
    cast_assert_said (&c, i, i ? "----" : "0123");
  cast_clear (&c);
}

static char *
bring_much (weft_rendezvous *r, GError **error)
{
  g_autofree uint8_t *block = g_malloc (3000000);

  memset (block, (int) cast_process (r), 3000000);
  g_autoptr (GBytes) mine = g_bytes_new (block, 3000000);
  g_autoptr (GPtrArray) all = weft_rendezvous_all_gather (r, "much", mine, 0, error);
  for (uint32_t p = 0; all && p < all->len; p++)
    if (g_bytes_get_size (all->pdata[p]) != 3000000 ||
        ((const uint8_t *) g_bytes_get_data (all->pdata[p], NULL))[2999999] != p)
      return g_strdup ("another value");
  return all ? g_strdup ("whole") : NULL;
}

static void
values_of_megabytes_arrive_whole (void **state)
{
  struct cast c = cast_of (3, 20, bring_much);

  (void) state;
  cast_run (&c);
  for (uint32_t i = 0; i < c.n; i++)
    cast_assert_said (&c, i, "whole");
  cast_clear (&c);
}

/* Opens a listening socket on the IPv6 loopback address, as another program would. Returns NULL on
 * a machine without IPv6. */
static GSocket *
listen_on_new_loopback (void)
{
  g_autoptr (GSocket) socket =
      g_socket_new (G_SOCKET_FAMILY_IPV6, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  g_autoptr (GSocketAddress) loopback = g_inet_socket_address_new_from_string ("::1", 0);

  if (!socket || !g_socket_bind (socket, loopback, FALSE, NULL) || !g_socket_listen (socket, NULL))
    return NULL;
  return g_steal_pointer (&socket);
}

/* Number of ranks of each process. Each process must send only the data of its own ranks, because
 * the data of all ranks of both processes exceed the largest frame. */
#define RANKS 900000u

static char *
tell_memory (weft_rendezvous *r, GError **error)
{
  g_autofree uint64_t *device = g_new0 (uint64_t, 2 * RANKS), *host = g_new0 (uint64_t, 2 * RANKS);
  weft_actors actors = { .n = 2 * RANKS };
  weft_exec x = { .actors = &actors, .allocated = device, .allocated_host = host, .peers = r };

  for (uint32_t i = cast_process (r) * RANKS; i < (cast_process (r) + 1) * RANKS; i++) {
    device[i] = 2 * i;
    host[i] = 2 * i + 1;
  }
  gboolean ok = weft_processes_gather_allocated (&x, error);
  for (uint32_t i = 0; ok && i < 2 * RANKS; i++)
    ok = device[i] == 2 * i && host[i] == 2 * i + 1;
  return ok ? g_strdup ("all") : NULL;
}

static void
memory_of_very_many_ranks_is_known_to_all (void **state)
{
  struct cast c = cast_of (2, 60, tell_memory);

  (void) state;
  c.part[0].place.ranks_each = c.part[1].place.ranks_each = RANKS;
  cast_run (&c);
  cast_assert_said (&c, 0, "all");
  cast_assert_said (&c, 1, "all");
  cast_clear (&c);
}

/* The host of a rendezvous may be a name or an IPv6 address, with or without brackets. */
static void
an_address_may_be_of_either_kind (void **state)
{
  static const char *const hosts[] = { "localhost", "::1", "[::1]" };
  g_autoptr (GSocket) of_new_kind = listen_on_new_loopback ();
  const unsigned n = of_new_kind ? G_N_ELEMENTS (hosts) : 1;

  (void) state;
  for (unsigned h = 0; h < n; h++) {
    struct cast c = cast_of (2, 5, get_what_the_last_has_set);
    for (uint32_t i = 0; i < c.n; i++)
      c.part[i].place.host = hosts[h];
    cast_run (&c);
    for (uint32_t i = 0; i < c.n; i++)
      cast_assert_said (&c, i, "a value");
    cast_clear (&c);
  }
}

/* ------------------------------------------------------------------------ missing */

static void
who_has_not_come_is_named (void **state)
{
  struct cast c = cast_of (4, 1.5, meet_often);

  (void) state;
  cast_start (&c, 0);
  cast_start (&c, 2);
  cast_finish (&c);
  cast_assert_failed (&c, 0, "2 of 4 processes connected within 1.5 s; missing: rank 1, rank 3");
  cast_assert_failed (&c, 2, "2 of 4 processes connected within 1.5 s; missing: rank 1, rank 3");
  cast_clear (&c);
}

static void
processes_of_several_ranks_are_named_by_these (void **state)
{
  struct cast c = cast_of (2, 0.2, meet_often);

  (void) state;
  c.part[0].place.ranks_each = 8;
  cast_start (&c, 0);
  cast_finish (&c);
  cast_assert_failed (&c, 0, "missing: ranks 8 to 15");
  cast_clear (&c);
}

static void
without_rank_0_nobody_answers (void **state)
{
  struct cast c = cast_of (2, 0.2, meet_often);

  (void) state;
  cast_start (&c, 1);
  cast_finish (&c);
  cast_assert_failed (&c, 1, "rank 0 is missing after 0.2 s: no answer at 127.0.0.1 port");
  cast_clear (&c);
}

static char *
one_stays_away (weft_rendezvous *r, GError **error)
{
  gboolean asked;

  if (!cast_barrier (r, "step 7", error))
    return NULL;
  if (cast_process (r) == 1) {
    /* process 1 never arrives at the barrier of step 8; it only polls until the job has failed */
    while (weft_rendezvous_poll (r, &asked, error))
      g_usleep (1000);
    return NULL;
  }
  g_autoptr (GPtrArray) all = weft_rendezvous_all_gather (r, "step 8", NULL, 0.3, error);
  if (!all && error && *error)
    weft_rendezvous_abort (r, (*error)->message);
  return NULL;
}

static void
who_stays_away_is_named_with_where_it_was_last (void **state)
{
  struct cast c = cast_of (2, 20, one_stays_away);

  (void) state;
  cast_run (&c);
  cast_assert_failed (&c, 0, "step 8: missing after 0.3 s: rank 1 on ");
  cast_assert_failed (&c, 0, "(last seen at step 7, ");
  cast_assert_failed (&c, 1, "has failed: step 8: missing after 0.3 s");
  cast_clear (&c);
}

static char *
one_gives_up (weft_rendezvous *r, GError **error)
{
  if (cast_process (r) == 2) {
    weft_rendezvous_abort (r, "the disk\nis full");
    return g_strdup ("gave up");
  }
  cast_barrier (r, "the end", error);
  return NULL;
}

static void
when_one_gives_up_all_are_told_why (void **state)
{
  struct cast c = cast_of (4, 20, one_gives_up);

  (void) state;
  cast_run (&c);
  cast_assert_said (&c, 2, "gave up");
  cast_assert_failed (&c, 0, "rank 2 on ");
  cast_assert_failed (&c, 1, " has failed: the disk is full");
  cast_assert_failed (&c, 3, " has failed: the disk is full");
  cast_clear (&c);
}

static char *
one_goes_early (weft_rendezvous *r, GError **error)
{
  if (cast_process (r) > 0)
    cast_barrier (r, "the end", error);
  return NULL;
}

static void
who_has_ended_is_not_waited_for (void **state)
{
  struct cast c = cast_of (3, 20, one_goes_early);

  (void) state;
  cast_run (&c);
  cast_assert_failed (&c, 1, "rank 0 on ");
  cast_assert_failed (&c, 2, "has ended while other processes wait for it");
  cast_clear (&c);
}

/* ------------------------------------------------------------------------ reports */

static char *
one_asks (weft_rendezvous *r, GError **error)
{
  gboolean asked = FALSE;
  char *text = NULL;

  if (cast_process (r) == 0)
    text = weft_rendezvous_ask_status (r, "asks", 0.5);
  while (cast_process (r) == 1 && !asked && weft_rendezvous_poll (r, &asked, error))
    g_usleep (1000);
  if (cast_process (r) == 1)
    weft_rendezvous_set_status (r, "in all_reduce\tbucket 3");
  if (cast_process (r) == 2)
    g_usleep (800000);
  return cast_barrier (r, "the end", error) && text ? text : g_strdup ("");
}

static void
how_far_others_are_is_told_and_who_is_silent (void **state)
{
  struct cast c = cast_of (4, 20, one_asks);

  (void) state;
  cast_run (&c);
  assert_null (c.part[0].error);
  assert_non_null (strstr (c.part[0].said, ": in all_reduce bucket 3"));
  assert_non_null (strstr (c.part[0].said, "rank 2 on "));
  assert_non_null (strstr (c.part[0].said, ": no answer"));
  assert_non_null (strstr (c.part[0].said, ": waits for all processes at the end"));
  cast_clear (&c);
}

/* ------------------------------------------------------------------------ strangers */

static void
another_job_is_turned_away (void **state)
{
  struct cast c = cast_of (2, 1.5, meet_often);

  (void) state;
  c.part[1].place.token = "another job";
  cast_run (&c);
  cast_assert_failed (&c, 1, "wanted that of job \"another job\"");
  cast_assert_failed (&c, 0, "missing: rank 1");
  cast_clear (&c);
}

static void
another_number_of_processes_is_told (void **state)
{
  struct cast c = cast_of (2, 1.5, meet_often);

  (void) state;
  c.part[1].place.n = 3;
  cast_run (&c);
  cast_assert_failed (&c, 1, "rank 1: found a world size of 3, wanted 2 as in rank 0");
  cast_clear (&c);
}

static void
nobody_comes_twice (void **state)
{
  struct cast c = cast_of (3, 1.5, meet_often);

  (void) state;
  c.part[2].place.process = 1;
  cast_run (&c);
  assert_true ((c.part[1].error &&
                strstr (c.part[1].error->message, "found a second process with this rank")) ||
               (c.part[2].error &&
                strstr (c.part[2].error->message, "found a second process with this rank")));
  cast_assert_failed (&c, 0, "missing: rank 2");
  cast_clear (&c);
}

static void
a_port_that_is_taken_is_named (void **state)
{
  const struct weft_store_options options = {
    .token = "", .host = "localhost", .n = 1, .ranks_each = 1, .seconds = 1
  };
  g_autoptr (GError) error = NULL;
  weft_store *first = weft_store_open (0, &options, &error), *second;

  (void) state;
  assert_non_null (first);
  second = weft_store_open (weft_store_port (first), &options, &error);
  assert_null (second);
  g_autofree char *wanted = g_strdup_printf ("port %u of this machine", weft_store_port (first));
  assert_non_null (strstr (error->message, wanted));
  assert_non_null (strstr (error->message, "in use"));
  weft_store_close (first, 0);
}

/* Another program listens on the port, but only on IPv6. The store must refuse this port,
 * because clients that connect to "localhost" could reach the other program. */
static void
a_port_that_is_taken_on_new_addresses_alone_is_named (void **state)
{
  const struct weft_store_options options = {
    .token = "", .host = "localhost", .n = 1, .ranks_each = 1, .seconds = 1
  };
  g_autoptr (GSocket) other = listen_on_new_loopback ();
  g_autoptr (GError) error = NULL;

  (void) state;
  if (!other)
    skip ();
  g_autoptr (GSocketAddress) at = g_socket_get_local_address (other, NULL);
  uint16_t port = g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (at));
  assert_null (weft_store_open (port, &options, &error));
  assert_non_null (strstr (error->message, "in use"));
}

/* Connects to a port and sends bytes that are not a frame. The caller closes the connection. */
static GSocketConnection *
send_garbage (uint16_t port, const void *data, gsize n)
{
  GSocketConnection *c = cast_connect (port, "127.0.0.1");

  g_socket_send (g_socket_connection_get_socket (c), data, n, NULL, NULL);
  return c;
}

static void
garbage_on_the_port_harms_nobody (void **state)
{
  struct cast c = cast_of (2, 20, meet_often);
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);
  GSocketConnection *garbage[40];

  (void) state;
  cast_start (&c, 0);
  for (unsigned i = 0; i < G_N_ELEMENTS (garbage); i++) {
    uint32_t block[64];
    for (unsigned w = 0; w < G_N_ELEMENTS (block); w++)
      block[w] = i % 4 == 0 ? 0xffffffffu : i % 4 == 1 ? 0x20u : g_rand_int (rand);
    if (i % 4 == 2)
      memcpy (block, "GET / HTTP/1.1\r\n\r\n", 18);
    garbage[i] = send_garbage (c.part[0].place.port, block, 4 * (1 + i % 64));
    if (i % 3 == 0)
      g_clear_object (&garbage[i]);
  }
  cast_start (&c, 1);
  cast_finish (&c);
  cast_assert_said (&c, 0, "-1");
  cast_assert_said (&c, 1, "-1");
  for (unsigned i = 0; i < G_N_ELEMENTS (garbage); i++)
    g_clear_object (&garbage[i]);
  cast_clear (&c);
}

/* Acts as another network service on the port, which answers with bytes that are no frame. */
static gboolean
answer_garbage (GSocketService *service, GSocketConnection *c, GObject *source, gpointer data)
{
  (void) service, (void) source, (void) data;
  g_socket_send (g_socket_connection_get_socket (c), "HTTP/1.1 400 Bad Request\r\n", 26, NULL,
                 NULL);
  return FALSE;
}

static void
somebody_else_at_the_port_is_told_apart (void **state)
{
  g_autoptr (GSocketService) service = g_threaded_socket_service_new (4);
  struct cast c = cast_of (2, 5, meet_often);

  (void) state;
  assert_true (g_socket_listener_add_inet_port (G_SOCKET_LISTENER (service), c.part[1].place.port,
                                                NULL, NULL));
  g_signal_connect (service, "run", G_CALLBACK (answer_garbage), NULL);
  GMainContext *context = g_main_context_default ();
  cast_start (&c, 1);
  for (int i = 0; i < 300 && !c.part[1].error; i++) {
    g_main_context_iteration (context, FALSE);
    g_usleep (5000);
  }
  cast_finish (&c);
  cast_assert_failed (&c, 1, "found another service, wanted the rendezvous of a job");
  g_socket_listener_close (G_SOCKET_LISTENER (service));
  cast_clear (&c);
}

/* --------------------------------------------------------------------- real processes */

/* Whether a thread of this process can receive a signal, because the thread does not block it
 * (/proc). FALSE for a thread that has ended. */
static gboolean
takes_signal (const char *thread, int signal)
{
  g_autofree char *path = g_strdup_printf ("/proc/self/task/%s/status", thread), *text = NULL;

  g_file_get_contents (path, &text, NULL, NULL);
  const char *blocked = text ? strstr (text, "SigBlk:") : NULL;
  return blocked &&
         !(g_ascii_strtoull (blocked + strlen ("SigBlk:"), NULL, 16) >> (signal - 1) & 1);
}

/* Checks that every thread other than the main thread blocks SIGTERM and SIGINT. Only the main
 * thread waits for these signals; in any other thread they would end the process. */
static gboolean
leave_signals_to_the_first (GError **error)
{
  g_autoptr (GDir) threads = g_dir_open ("/proc/self/task", 0, NULL);
  g_autofree char *first = g_strdup_printf ("%d", (int) getpid ());
  const char *name;

  while ((name = g_dir_read_name (threads)))
    if (strcmp (name, first) && (takes_signal (name, SIGTERM) || takes_signal (name, SIGINT))) {
      g_set_error (error, G_FILE_ERROR, 0, "a thread beside the first takes SIGTERM or SIGINT");
      return FALSE;
    }
  return TRUE;
}

/* Lets GLib resolve a host name, for which GLib starts a thread. The name is not "localhost",
 * which GLib resolves without a thread. */
static void
ask_where_somebody_is (void)
{
  const struct weft_rendezvous_place nowhere = { .host = g_get_host_name (),
                                                 .port = 1,
                                                 .token = "",
                                                 .n = 2,
                                                 .process = 1,
                                                 .ranks_each = 1,
                                                 .seconds = 0.01 };
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open (&nowhere, NULL);
  g_assert (!r);
}

/* The main function of a process that this program starts with "meet" or "die RANK". */
static int
be_process (int argc, char **argv)
{
  if (argc < 2)
    return WEFT_TESTS_RUN;

  g_auto (weft_launch) launch = { 0 };
  g_autoptr (GError) error = NULL;

  if (!weft_launch_read (NULL, NULL, &launch, &error)) {
    fprintf (stderr, "%s\n", error->message);
    return 2;
  }
  ask_where_somebody_is ();
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open_launch (&launch, 1, 10, &error);
  if (r && leave_signals_to_the_first (&error) && cast_barrier (r, "step 1", &error)) {
    if (argc > 2 && g_ascii_strtoull (argv[2], NULL, 10) == launch.rank)
      raise (SIGKILL);
    if (argc < 3 || cast_barrier (r, "step 2", &error))
      printf ("%u of %u", launch.rank, launch.n);
  }
  if (error)
    fprintf (stderr, "%s\n", error->message);
  return error ? 1 : 0;
}

static void
processes_of_every_launcher_meet (void **state)
{
  (void) state;
  for (int launcher = 0; launcher < WEFT_N_LAUNCHER; launcher++) {
    struct processes p = processes_start ("meet", launcher, 3, free_port ());
    processes_wait (&p);
    for (uint32_t i = 0; i < p.n; i++) {
      g_autofree char *wanted = g_strdup_printf ("%u of 3", i);
      if (p.at[i].status)
        fail_msg ("%s: process %u: %s", weft_launcher_words[launcher], i, p.at[i].err);
      assert_string_equal (p.at[i].out, wanted);
    }
    processes_clear (&p);
  }
}

static void
when_a_process_is_killed_the_others_end_and_name_it (void **state)
{
  struct processes p = processes_start ("die 2", WEFT_LAUNCHER_TORCHRUN, 4, free_port ());

  (void) state;
  processes_wait (&p);
  assert_int_equal (p.at[2].status, 128 + SIGKILL);
  process_assert_told (&p.at[0], "rank 2 on ");
  process_assert_told (&p.at[1], "is gone: its process has ended");
  process_assert_told (&p.at[3], "last seen at step 1");
  processes_clear (&p);
}

static void
when_the_process_of_rank_0_is_killed_the_others_end_and_name_it (void **state)
{
  struct processes p = processes_start ("die 0", WEFT_LAUNCHER_SLURM, 3, free_port ());

  (void) state;
  processes_wait (&p);
  assert_int_equal (p.at[0].status, 128 + SIGKILL);
  process_assert_told (&p.at[1], "rank 0, which runs the rendezvous at localhost port ");
  process_assert_told (&p.at[2], " is gone");
  processes_clear (&p);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_value_of_one_is_got_by_all_who_wait_for_it),
  cmocka_unit_test (all_wait_for_all_and_get_what_each_has_brought),
  cmocka_unit_test (what_is_gathered_the_first_alone_gets),
  cmocka_unit_test (values_of_megabytes_arrive_whole),
  cmocka_unit_test (memory_of_very_many_ranks_is_known_to_all),
  cmocka_unit_test (an_address_may_be_of_either_kind),
  cmocka_unit_test (who_has_not_come_is_named),
  cmocka_unit_test (processes_of_several_ranks_are_named_by_these),
  cmocka_unit_test (without_rank_0_nobody_answers),
  cmocka_unit_test (who_stays_away_is_named_with_where_it_was_last),
  cmocka_unit_test (when_one_gives_up_all_are_told_why),
  cmocka_unit_test (who_has_ended_is_not_waited_for),
  cmocka_unit_test (how_far_others_are_is_told_and_who_is_silent),
  cmocka_unit_test (another_job_is_turned_away),
  cmocka_unit_test (another_number_of_processes_is_told),
  cmocka_unit_test (nobody_comes_twice),
  cmocka_unit_test (a_port_that_is_taken_is_named),
  cmocka_unit_test (a_port_that_is_taken_on_new_addresses_alone_is_named),
  cmocka_unit_test (garbage_on_the_port_harms_nobody),
  cmocka_unit_test (somebody_else_at_the_port_is_told_apart),
  cmocka_unit_test (processes_of_every_launcher_meet),
  cmocka_unit_test (when_a_process_is_killed_the_others_end_and_name_it),
  cmocka_unit_test (when_the_process_of_rank_0_is_killed_the_others_end_and_name_it),
};

WEFT_TESTS (tests, .seconds = 7, .begin = be_process)
