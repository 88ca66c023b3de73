#include "planner/lab.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/job/flags.h"
#include "core/report/report.h"
#include "exec_sim/exec_sim.h"
#include "planner/arithmetic.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JOB "job "
#define QUESTION "question "
#define MISTAKE "mistake_"
#define BETWEEN " : " /* between the value of a mistake and its text */

/* -------------------------------------------------------------------------- files */

static int
by_name (gconstpointer a, gconstpointer b)
{
  return strcmp (*(char *const *) a, *(char *const *) b);
}

/* Key `number` of section [lab] orders the labs. */
static int
by_number (gconstpointer a, gconstpointer b, gpointer numbers)
{
  int x = GPOINTER_TO_INT (g_hash_table_lookup (numbers, *(char *const *) a));
  int y = GPOINTER_TO_INT (g_hash_table_lookup (numbers, *(char *const *) b));

  return x != y ? x - y : by_name (a, b);
}

static const char *
entry_value (const weft_conf *conf, const char *section, const char *key)
{
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (g_str_equal (conf->entry[i].section, section) && g_str_equal (conf->entry[i].key, key))
      return conf->entry[i].value;
  return NULL;
}

static int
number_of (const char *name)
{
  g_autofree char *path = weft_data_find (WEFT_LAB_FOLDER, name, WEFT_LAB_SUFFIX, NULL);
  g_autoptr (weft_conf) conf = path ? weft_conf_load (path, NULL) : NULL;
  const char *number = conf ? entry_value (conf, "lab", "number") : NULL;

  return number ? atoi (number) : 0;
}

char **
weft_lab_names (void)
{
  char **names = weft_data_names (WEFT_LAB_FOLDER, WEFT_LAB_SUFFIX);
  g_autoptr (GHashTable) numbers = g_hash_table_new (g_str_hash, g_str_equal);
  guint n = g_strv_length (names);

  for (guint i = 0; i < n; i++)
    g_hash_table_insert (numbers, names[i], GINT_TO_POINTER (number_of (names[i])));
  g_qsort_with_data (names, (int) n, sizeof *names, by_number, numbers);
  return names;
}

/* The path of a lab, given by name, number or path. The caller frees the path. */
static char *
find_lab (const char *name, GError **error)
{
  g_auto (GStrv) names = NULL;

  if (!name[0] || strspn (name, "0123456789") != strlen (name))
    return weft_data_find (WEFT_LAB_FOLDER, name, WEFT_LAB_SUFFIX, error);
  names = weft_lab_names ();
  uint64_t number = g_ascii_strtoull (name, NULL, 10);
  if (number < 1 || number > g_strv_length (names)) {
    weft_bad_input (error, "lab %s: wanted 1..%u", name, g_strv_length (names));
    return NULL;
  }
  return weft_data_find (WEFT_LAB_FOLDER, names[number - 1], WEFT_LAB_SUFFIX, error);
}

/* ------------------------------------------------------------------------- reading */

/* Sets *text to the value of a key. Fails with an error if the section lacks the key. */
static gboolean
need (const weft_conf *conf, const char *section, const char *key, const char **text,
      GError **error)
{
  *text = entry_value (conf, section, key);
  if (*text)
    return TRUE;
  return weft_bad_input (error, "%s: [%s] has no %s", conf->name, section, key);
}

static gboolean
read_question (weft_lab *lab, unsigned number, GError **error)
{
  g_autofree char *section = g_strdup_printf (QUESTION "%u", number);
  struct weft_lab_question q = { .within = NAN };
  const char *within;

  if (!need (lab->conf, section, "ask", &q.ask, error) ||
      !need (lab->conf, section, "value", &q.value, error) ||
      !need (lab->conf, section, "unit", &q.unit, error) ||
      !need (lab->conf, section, "within", &within, error) ||
      !need (lab->conf, section, "look", &q.look, error))
    return FALSE;
  if (!weft_units_parse (within, "", &q.within, error) || !(q.within >= 0 && q.within < 1))
    return weft_bad_input (error, "%s: [%s] within = %s, wanted a fraction below 1",
                           lab->conf->name, section, within);
  q.mistake = g_ptr_array_new ();
  for (unsigned i = 0; i < lab->conf->n_entry; i++) {
    struct weft_conf_entry *entry = &lab->conf->entry[i];
    if (g_str_equal (entry->section, section) && g_str_has_prefix (entry->key, MISTAKE))
      g_ptr_array_add (q.mistake, entry);
  }
  g_array_append_val (lab->question, q);
  return TRUE;
}

/* Keys of a section, NULL-terminated; NULL for a section that a lab does not have. */
static const char *const *
keys_of (const char *section)
{
  static const char *const of_lab[] = { "number", "title", "minutes", NULL };
  static const char *const of_job[] = { "flags", NULL };
  static const char *const of_question[] = { "ask", "value", "unit", "within", "look", NULL };

  return g_str_equal (section, "lab")           ? of_lab
         : g_str_has_prefix (section, JOB)      ? of_job
         : g_str_has_prefix (section, QUESTION) ? of_question
                                                : NULL;
}

static gboolean
check_entry (const weft_conf *conf, const struct weft_conf_entry *entry, GError **error)
{
  const char *const *keys = keys_of (entry->section);

  if (keys && (g_strv_contains (keys, entry->key) || (g_str_has_prefix (entry->section, QUESTION) &&
                                                      g_str_has_prefix (entry->key, MISTAKE))))
    return TRUE;
  if (!keys)
    return weft_bad_input (
        error, "%s:%u: found section [%s], wanted [lab], [" JOB "NAME] or [" QUESTION "N]",
        conf->name, entry->line, entry->section);
  g_autofree char *known = g_strjoinv (", ", (char **) keys);
  return weft_bad_input (error, "%s:%u: found %s in [%s], wanted %s", conf->name, entry->line,
                         entry->key, entry->section, known);
}

static gboolean
read_minutes (weft_lab *lab, GError **error)
{
  const char *text;
  double minutes;

  if (!need (lab->conf, "lab", "minutes", &text, error))
    return FALSE;
  if (!weft_units_parse (text, "", &minutes, NULL) || !(minutes >= 1 && minutes <= 600))
    return weft_bad_input (error, "%s: [lab] minutes = %s, wanted 1..600", lab->conf->name, text);
  lab->minutes = (unsigned) minutes;
  return TRUE;
}

static gboolean
read_lab (weft_lab *lab, GError **error)
{
  unsigned n = 0;

  if (!need (lab->conf, "lab", "title", &lab->title, error) || !read_minutes (lab, error))
    return FALSE;
  for (unsigned i = 0; i < lab->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &lab->conf->entry[i];
    if (!check_entry (lab->conf, entry, error))
      return FALSE;
    if (g_str_has_prefix (entry->section, JOB))
      g_hash_table_insert (lab->jobs, (char *) entry->section + strlen (JOB),
                           (char *) entry->value);
    else if (g_str_has_prefix (entry->section, QUESTION) && g_str_equal (entry->key, "ask"))
      n++;
  }
  for (unsigned i = 1; i <= n; i++)
    if (!read_question (lab, i, error))
      return FALSE;
  return n || weft_bad_input (error, "%s: found no [" QUESTION "1]", lab->conf->name);
}

weft_lab *
weft_lab_load (const char *name, GError **error)
{
  g_autofree char *path = find_lab (name, error);
  weft_conf *conf = path ? weft_conf_load (path, error) : NULL;

  if (!conf)
    return NULL;
  weft_lab *lab = g_new0 (weft_lab, 1);
  lab->conf = conf;
  lab->name = g_path_get_basename (path);
  lab->name[strlen (lab->name) - strlen (WEFT_LAB_SUFFIX)] = '\0';
  lab->jobs = g_hash_table_new (g_str_hash, g_str_equal);
  lab->question = g_array_new (FALSE, FALSE, sizeof (struct weft_lab_question));
  if (read_lab (lab, error))
    return lab;
  weft_lab_free (lab);
  return NULL;
}

void
weft_lab_free (weft_lab *lab)
{
  if (!lab)
    return;
  for (guint i = 0; i < lab->question->len; i++)
    g_ptr_array_unref (g_array_index (lab->question, struct weft_lab_question, i).mistake);
  g_array_unref (lab->question);
  g_hash_table_unref (lab->jobs);
  weft_conf_free (lab->conf);
  g_free (lab->name);
  g_free (lab);
}

/* -------------------------------------------------------------------------- values */

/* A simulated job of a lab. */
struct result {
  weft_plan *plan;
  JsonNode *document; /* weft.sim/1 */
};

static void
result_free (void *result)
{
  struct result *r = result;

  g_clear_pointer (&r->plan, weft_plan_free);
  g_clear_pointer (&r->document, json_node_unref);
  g_free (r);
}

/* Evaluates the expressions of a lab. Every job is simulated when an expression first names it. */
struct evaluator {
  const weft_lab *lab;
  GHashTable *result; /* name of a job -> struct result */
  GError *error;      /* the first error of a name */
};

static JsonNode *
document_of (const weft_plan *plan, GError **error)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_timeline) timeline = weft_exec_run (&weft_exec_sim, plan, &options, error);
  g_autoptr (JsonBuilder) b = json_builder_new ();

  if (!timeline)
    return NULL;
  g_autoptr (weft_report) report = weft_report_new (plan, timeline);
  json_builder_begin_object (b);
  weft_report_to_json (report, b);
  json_builder_end_object (b);
  return json_builder_get_root (b);
}

static struct result *
simulate (const char *flags, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_auto (GStrv) word = g_strsplit (flags, " ", -1);
  g_autofree struct weft_job *job = g_new0 (struct weft_job, 1);
  struct result *r = g_new0 (struct result, 1);

  if (weft_flags_read ((int) g_strv_length (word), (const char *const *) word, NULL, settings,
                       error) &&
      weft_job_build (settings, job, error) && (r->plan = weft_plan_new (job, error)) &&
      (r->document = document_of (r->plan, error)))
    return r;
  result_free (r);
  return NULL;
}

static struct result *
result_of (struct evaluator *e, const char *name)
{
  struct result *r = g_hash_table_lookup (e->result, name);
  const char *flags = g_hash_table_lookup (e->lab->jobs, name);

  if (r || e->error)
    return e->error ? NULL : r;
  if (!flags) {
    weft_bad_input (&e->error, "%s: found job %s, which has no section", e->lab->conf->name, name);
    return NULL;
  }
  r = simulate (flags, &e->error);
  if (r)
    g_hash_table_insert (e->result, g_strdup (name), r);
  else
    g_prefix_error (&e->error, "%s: [" JOB "%s] ", e->lab->conf->name, name);
  return r;
}

/* The number at a path of the document: members, and indices of arrays. */
static gboolean
walk (JsonNode *node, char *const *path, double *value)
{
  for (; *path; path++)
    if (JSON_NODE_HOLDS_OBJECT (node))
      node = json_object_get_member (json_node_get_object (node), *path);
    else if (node && JSON_NODE_HOLDS_ARRAY (node) &&
             strtoul (*path, NULL, 10) < json_array_get_length (json_node_get_array (node)))
      node = json_array_get_element (json_node_get_array (node), (guint) strtoul (*path, NULL, 10));
    else
      return FALSE;
  if (!node || !JSON_NODE_HOLDS_VALUE (node))
    return FALSE;
  *value = json_node_get_double (node);
  return TRUE;
}

/* The contribution of an op to a sum over the ops of its kind: one function for each kind of
 * sum. */
static double
one_op (const weft_plan *plan, uint32_t op)
{
  (void) plan;
  (void) op;
  return 1;
}

static double
bytes_of (const weft_plan *plan, uint32_t op)
{
  return weft_op_bytes (plan->role[0], op);
}

static double
flops_of (const weft_plan *plan, uint32_t op)
{
  return weft_op_flops (plan->role[0], op);
}

static double
closed_of (const weft_plan *plan, uint32_t op)
{
  enum weft_op_class class = weft_op_info[plan->role[0]->op[op].kind].class;

  return class == WEFT_CLASS_COMPUTE ? 0 : weft_plan_comm_seconds (plan, 0, op);
}

static const struct {
  const char *word;
  double (*of) (const weft_plan *plan, uint32_t op);
  gboolean largest; /* take the largest value of the ops instead of the sum */
} sums[] = {
  { "count", one_op, FALSE },
  { "bytes", bytes_of, FALSE },
  { "flops", flops_of, FALSE },
  { "closed", closed_of, TRUE },
};

static gboolean
sum_ops (const weft_plan *plan, char *const *path, double *value)
{
  const weft_program *p = plan->role[0];

  for (unsigned s = 0; s < G_N_ELEMENTS (sums); s++) {
    if (!g_str_equal (path[0], sums[s].word) || !path[1] || path[2])
      continue;
    *value = 0;
    for (uint32_t i = 0; i < p->n_op; i++)
      if (g_str_equal (weft_op_info[p->op[i].kind].word, path[1])) {
        double one = sums[s].of (plan, i);
        *value = sums[s].largest ? MAX (*value, one) : *value + one;
      }
    return TRUE;
  }
  return FALSE;
}

static gboolean
value_of_name (const char *name, double *value, const void *user)
{
  struct evaluator *e = (struct evaluator *) user;
  g_auto (GStrv) part = g_strsplit (name, ".", -1);
  struct result *r = part[0] && part[1] ? result_of (e, part[0]) : NULL;

  return r && (sum_ops (r->plan, part + 1, value) || walk (r->document, part + 1, value));
}

static struct evaluator *
evaluator_new (const weft_lab *lab)
{
  struct evaluator *e = g_new0 (struct evaluator, 1);

  e->lab = lab;
  e->result = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, result_free);
  return e;
}

static void
evaluator_free (struct evaluator *e)
{
  g_hash_table_unref (e->result);
  g_clear_error (&e->error);
  g_free (e);
}
typedef struct evaluator evaluator;
G_DEFINE_AUTOPTR_CLEANUP_FUNC (evaluator, evaluator_free)

static gboolean
evaluate (struct evaluator *e, const char *text, double *value, GError **error)
{
  if (weft_arithmetic (text, value_of_name, e, value) && !e->error && isfinite (*value))
    return TRUE;
  if (e->error) {
    g_propagate_error (error, g_steal_pointer (&e->error));
    return FALSE;
  }
  return weft_bad_input (error, "%s: \"%s\" has no value", e->lab->conf->name, text);
}

gboolean
weft_lab_value (const weft_lab *lab, unsigned question, double *value, GError **error)
{
  g_autoptr (evaluator) e = evaluator_new (lab);

  return evaluate (e, g_array_index (lab->question, struct weft_lab_question, question - 1).value,
                   value, error);
}

/* ------------------------------------------------------------------------- checking */

static gboolean
is_near (double answer, double value, double within)
{
  return fabs (answer - value) <= within * fabs (value) + 1e-12;
}

/* Sets *look to the hint for a wrong answer: the text of the mistake that leads to this value, or
 * the general hint of the question. */
static gboolean
look_of (struct evaluator *e, const struct weft_lab_question *q, double answer, const char **look,
         GError **error)
{
  *look = q->look;
  for (guint i = 0; i < q->mistake->len; i++) {
    const struct weft_conf_entry *entry = q->mistake->pdata[i];
    const char *between = strstr (entry->value, BETWEEN);
    double value;
    if (!between)
      return weft_bad_input (error, "%s:%u: found %s, wanted VALUE" BETWEEN "TEXT",
                             e->lab->conf->name, entry->line, entry->value);
    g_autofree char *text = g_strndup (entry->value, (gsize) (between - entry->value));
    if (!evaluate (e, text, &value, error))
      return FALSE;
    if (is_near (answer, value, q->within)) {
      *look = between + strlen (BETWEEN);
      return TRUE;
    }
  }
  return TRUE;
}

static gboolean
judge (struct evaluator *e, const struct weft_lab_question *q, double answer,
       struct weft_lab_mark *mark, GError **error)
{
  double value;

  if (!evaluate (e, q->value, &value, error))
    return FALSE;
  mark->verdict = is_near (answer, value, q->within) ? WEFT_LAB_RIGHT : WEFT_LAB_WRONG;
  return mark->verdict == WEFT_LAB_RIGHT || look_of (e, q, answer, &mark->look, error);
}

/* Reads an answer such as "12.5 GB": the unit may stand apart. An empty answer is NaN. */
static gboolean
read_answer (const weft_conf *conf, const struct weft_conf_entry *entry,
             const struct weft_lab_question *q, double *answer, GError **error)
{
  g_auto (GStrv) parts = g_strsplit (entry->value, " ", -1);
  g_autofree char *text = g_strjoinv ("", parts);

  *answer = NAN;
  return !*text || weft_units_parse (text, q->unit, answer, error) ||
         weft_conf_blame (conf, entry, error);
}

struct weft_lab_mark *
weft_lab_check (const weft_lab *lab, const char *path, GError **error)
{
  g_autoptr (weft_conf) conf = weft_conf_load (path, error);
  g_autoptr (evaluator) e = evaluator_new (lab);
  g_autofree struct weft_lab_mark *mark = g_new0 (struct weft_lab_mark, lab->question->len);

  if (!conf)
    return NULL;
  for (unsigned i = 0; i < conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &conf->entry[i];
    uint64_t number = g_ascii_strtoull (entry->key, NULL, 10);
    double answer;
    if (!g_str_equal (entry->section, WEFT_LAB_ANSWERS) || number < 1 ||
        number > lab->question->len) {
      weft_bad_input (error, "%s:%u: found [%s] %s, wanted [" WEFT_LAB_ANSWERS "] 1..%u",
                      conf->name, entry->line, entry->section, entry->key, lab->question->len);
      return NULL;
    }
    const struct weft_lab_question *q =
        &g_array_index (lab->question, struct weft_lab_question, number - 1);
    if (!read_answer (conf, entry, q, &answer, error) ||
        (!isnan (answer) && !judge (e, q, answer, &mark[number - 1], error)))
      return NULL;
  }
  return g_steal_pointer (&mark);
}
