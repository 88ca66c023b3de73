/* Hostile peers of a rendezvous: while the processes of a job exchange values again and again,
 * strangers (connections of other programs) reach the same port. Strangers send nothing, random
 * bytes, truncated frames or greetings without the secret, and close their connections. The job
 * must not be disturbed. Arguments: SEED [JOBS]. */
#include "launch/rendezvous.h"
#include "launch/wire.h"
#include "tests/attack/attack.h"
#include "tests/runner/processes.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>
#include <string.h>

#define JOBS 2
#define PROCESSES 3
#define MEETINGS 60
#define STRANGERS 96 /* number of connections that one hostile thread keeps open */
#define SECONDS 60   /* time limit of every exchange of the job */

/* ---------------------------------------------------------------------- members */

struct member {
  struct weft_rendezvous_place place;
  GError *error;
  uint32_t met;
};

/* Whether exchange number `meeting` returned the value of every process. A value is the number
 * of the exchange and the number of the process that sent it. */
static gboolean
are_all (const GPtrArray *all, uint32_t meeting)
{
  for (uint32_t p = 0; all && p < all->len; p++) {
    const uint32_t wanted[] = { meeting, p };
    if (!all->pdata[p] || g_bytes_get_size (all->pdata[p]) != sizeof wanted ||
        memcmp (g_bytes_get_data (all->pdata[p], NULL), wanted, sizeof wanted) != 0)
      return FALSE;
  }
  return all != NULL;
}

static gpointer
member_main (gpointer data)
{
  struct member *m = data;
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open (&m->place, &m->error);

  while (r && m->met < MEETINGS) {
    const uint32_t mine[] = { m->met, m->place.process };
    g_autoptr (GBytes) value = g_bytes_new (mine, sizeof mine);
    g_autoptr (GPtrArray) all =
        weft_rendezvous_all_gather (r, "meeting", value, SECONDS, &m->error);
    if (!are_all (all, m->met))
      return NULL;
    m->met++;
    g_usleep (2000);
  }
  return NULL;
}

/* -------------------------------------------------------------------- strangers */

struct attacker {
  uint16_t port;
  uint32_t seed, n; /* n: number of connections that the thread has made so far */
  gint over;        /* the main thread sets `over` to end the thread; atomic */
};

/* Appends a greeting like that of a process of the job, with a random nonce. Some greetings are
 * malformed: another kind of frame, a wrong length, or truncated. */
static void
add_greeting (GByteArray *bytes, GRand *rand)
{
  uint8_t nonce[64];
  struct weft_frame f = { .kind =
                              attack_one_in (rand, 3)
                                  ? (enum weft_frame_kind) g_rand_int_range (rand, 0, WEFT_N_FRAME)
                                  : WEFT_FRAME_HELLO,
                          .number = (uint32_t) g_rand_int_range (rand, 0, PROCESSES + 1),
                          .key = "the job",
                          .key_bytes = 7,
                          .value = nonce,
                          .value_bytes = (uint32_t) g_rand_int_range (rand, 0, sizeof nonce) };

  for (unsigned i = 0; i < sizeof nonce; i++)
    nonce[i] = (uint8_t) g_rand_int (rand);
  weft_frame_put (bytes, &f);
  if (attack_one_in (rand, 4))
    bytes->data[g_rand_int_range (rand, 0, 4)] ^= (uint8_t) g_rand_int (rand);
  if (attack_one_in (rand, 4))
    g_byte_array_set_size (bytes, (guint) g_rand_int_range (rand, 1, (gint32) bytes->len));
}

static void
add_noise (GByteArray *bytes, GRand *rand)
{
  for (int n = g_rand_int_range (rand, 1, 5000); n > 0; n--) {
    uint8_t byte = (uint8_t) g_rand_int (rand);
    g_byte_array_append (bytes, &byte, 1);
  }
}

static GSocket *
stranger_new (struct attacker *a, GRand *rand)
{
  g_autoptr (GSocket) s =
      g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  g_autoptr (GSocketAddress) to = g_inet_socket_address_new_from_string ("127.0.0.1", a->port);
  g_autoptr (GByteArray) bytes = g_byte_array_new ();

  if (!s || !g_socket_connect (s, to, NULL, NULL))
    return NULL;
  g_socket_set_blocking (s, FALSE);
  for (int n = g_rand_int_range (rand, 0, 4); n > 0; n--)
    (attack_one_in (rand, 2) ? add_noise : add_greeting) (bytes, rand);
  if (bytes->len)
    g_socket_send (s, (const char *) bytes->data, bytes->len, NULL, NULL);
  a->n++;
  return g_steal_pointer (&s);
}

static gpointer
attacker_main (gpointer data)
{
  struct attacker *a = data;
  g_autoptr (GRand) rand = g_rand_new_with_seed (a->seed);
  GSocket *kept[STRANGERS] = { NULL };

  while (!g_atomic_int_get (&a->over)) {
    GSocket **place = &kept[g_rand_int_range (rand, 0, STRANGERS)];
    g_clear_object (place);
    *place = stranger_new (a, rand);
    if (!*place || attack_one_in (rand, 8))
      g_usleep (500); /* Waits if the store does not listen yet, and sometimes without a reason. */
  }
  for (unsigned i = 0; i < STRANGERS; i++)
    g_clear_object (&kept[i]);
  return NULL;
}

/* ------------------------------------------------------------------------- jobs */

static void
start_members (struct member *m, GThread **thread, uint16_t port)
{
  for (uint32_t p = 0; p < PROCESSES; p++) {
    m[p] = (struct member){ .place = { .host = "127.0.0.1",
                                       .port = port,
                                       .token = "the job",
                                       .secret = "a secret of more than enough characters",
                                       .n = PROCESSES,
                                       .process = p,
                                       .local = p,
                                       .ranks_each = 1,
                                       .seconds = SECONDS } };
    thread[p] = g_thread_new ("member", member_main, &m[p]);
  }
}

/* Runs one job while strangers connect to its port. Returns how many connections the strangers
 * made. */
static uint32_t
run_job (uint32_t seed)
{
  struct attacker a = { .port = free_port (), .seed = seed };
  GThread *attacker = g_thread_new ("attacker", attacker_main, &a), *thread[PROCESSES];
  struct member m[PROCESSES];

  start_members (m, thread, a.port);
  for (uint32_t p = 0; p < PROCESSES; p++)
    g_thread_join (thread[p]);
  g_atomic_int_set (&a.over, 1);
  g_thread_join (attacker);
  for (uint32_t p = 0; p < PROCESSES; p++)
    if (m[p].error || m[p].met < MEETINGS)
      fail_msg ("seed %u: process %u met %u times: %s", seed, p, m[p].met,
                m[p].error ? m[p].error->message : "another value");
  return a.n;
}

static void
strangers_do_not_disturb_a_job (void **state)
{
  uint32_t n = attack_count (JOBS), strangers = 0;

  (void) state;
  for (uint32_t i = 0; i < n; i++)
    strangers += run_job (attack_drawn.seed + i);
  print_message ("seed %u: %u jobs, %u connections of strangers\n", attack_drawn.seed, n,
                 strangers);
  assert_true (strangers > 10 * n);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (strangers_do_not_disturb_a_job),
};

WEFT_TESTS (tests, .begin = attack_begin, .seconds = 2)
