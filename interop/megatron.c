#include "interop/megatron.h"
#include "interop/shell.h"
#include "interop/yaml.h"
#include "core/base/error.h"
#include "core/job/stages.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ settings without a key */

/* As in validate_args of Megatron-LM: four times the hidden size; for SwiGLU two thirds of that,
 * rounded down to a multiple of 64. */
static char *
weft_megatron_ffn (const weft_reading *reading)
{
  gint64 width = weft_reading_int (reading, "hidden_size");

  if (g_strcmp0 (weft_reading_text (reading, "activation"), "swiglu") != 0)
    return weft_texts_positive (4 * width);
  return weft_texts_positive ((gint64) ((double) width * 8 / 3 / 64) * 64);
}

static char *
weft_megatron_kv_channels (const weft_reading *reading)
{
  gint64 heads = weft_reading_int (reading, "num_attention_heads");
  return heads > 0 ? weft_texts_positive (weft_reading_int (reading, "hidden_size") / heads) : NULL;
}

static char *
weft_megatron_heads (const weft_reading *reading)
{
  return weft_texts_positive (weft_reading_int (reading, "num_attention_heads"));
}

static char *
weft_megatron_expert_ffn (const weft_reading *reading)
{
  gint64 experts = weft_reading_int (reading, "num_moe_experts");
  return experts ? g_strdup (weft_reading_text (reading, "ffn_hidden_size")) : g_strdup ("0");
}

/* ------------------------------------------------------------------------------ vocabulary */

/* Tokens of GPT-2's vocabulary, the tokenizer of pretrain_gpt.py if no key names another. */
#define GPT2_TOKENIZER "GPT2BPETokenizer"
#define GPT2_TOKENS 50257

/* The tokenizer whose vocabulary is --vocab-size and one token for the end of a document
 * (megatron/training/tokenizer/tokenizer.py). */
#define NULL_TOKENIZER "NullTokenizer"

static char *
weft_megatron_vocab (const weft_reading *reading)
{
  const char *tokenizer = weft_reading_key (reading, "tokenizer-type");

  return !tokenizer || strcmp (tokenizer, GPT2_TOKENIZER) == 0 ? weft_texts_positive (GPT2_TOKENS)
                                                               : NULL;
}

static gboolean
vocab_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  gboolean one_more = g_strcmp0 (weft_reading_key (reading, "tokenizer-type"), NULL_TOKENIZER) == 0;
  weft_reading_set_int (reading, "vocab_size", g_ascii_strtoll (value, NULL, 10) + one_more);
  return TRUE;
}

static char *
vocab_out (const weft_reading *reading)
{
  return weft_texts_positive (weft_reading_int (reading, "vocab_size") - 1);
}

/* ---------------------------------------------------------------------------------- layers */

/* A Python list of 0 and 1 with + and *, as in ([0]*3+[1]*58). */
struct pattern {
  const char *at;
  GArray *items; /* gboolean: whether the layer has experts */
};

/* The most layers of a job (core/model.def). */
enum { MOST_LAYERS = 4096 };

static gboolean
read_list (struct pattern *p, unsigned *from)
{
  *from = p->items->len;
  for (p->at++; *p->at && *p->at != ']'; p->at++) {
    gboolean one = *p->at == '1';
    if (*p->at == '0' || *p->at == '1')
      g_array_append_val (p->items, one);
    else if (*p->at != ',' && *p->at != ' ')
      return FALSE;
  }
  return *p->at++ == ']' && p->items->len <= MOST_LAYERS;
}

static gboolean read_pattern (struct pattern *p, unsigned depth);

/* Repeats the items from `from` on. */
static gboolean
repeat (struct pattern *p, unsigned from)
{
  guint64 times = g_ascii_strtoull (p->at, (char **) &p->at, 10);
  unsigned n = p->items->len - from;

  if (n * times > MOST_LAYERS || times > MOST_LAYERS)
    return FALSE;
  g_array_set_size (p->items, from + n * (unsigned) times);
  for (unsigned i = n; times && i < n * times; i++)
    g_array_index (p->items, gboolean, from + i) = g_array_index (p->items, gboolean, from + i % n);
  return TRUE;
}

static gboolean
read_term (struct pattern *p, unsigned depth)
{
  unsigned from = p->items->len;

  p->at += strspn (p->at, " ");
  if (*p->at == '(') {
    p->at++;
    if (depth == 8 || !read_pattern (p, depth + 1) || *p->at++ != ')')
      return FALSE;
  } else if (*p->at != '[' || !read_list (p, &from))
    return FALSE;
  p->at += strspn (p->at, " ");
  while (*p->at == '*') {
    p->at += 1 + strspn (p->at + 1, " ");
    if (!g_ascii_isdigit (*p->at) || !repeat (p, from))
      return FALSE;
    p->at += strspn (p->at, " ");
  }
  return TRUE;
}

static gboolean
read_pattern (struct pattern *p, unsigned depth)
{
  do {
    p->at += *p->at == '+';
    if (!read_term (p, depth))
      return FALSE;
  } while (*p->at == '+');
  return TRUE;
}

/* Whether layer i of a model with these settings has experts (core/model.def). */
static gboolean
is_expert (gint64 layer, gint64 first, gint64 every, gint64 offset)
{
  return layer >= first && layer % every == offset;
}

static gboolean
fits (const GArray *items, gint64 first, gint64 every, gint64 offset)
{
  for (unsigned i = 0; i < items->len; i++)
    if (g_array_index (items, gboolean, i) != is_expert (i, first, every, offset))
      return FALSE;
  return TRUE;
}

static void
set_layers (weft_reading *reading, gint64 first, gint64 every, gint64 offset)
{
  weft_reading_set_int (reading, "moe_first_dense_layers", first);
  weft_reading_set_int (reading, "moe_layer_freq", every);
  weft_reading_set_int (reading, "moe_layer_offset", offset);
}

/* Finds the settings for a list: leading dense layers, then every n-th layer has experts. */
static gboolean
set_list (weft_reading *reading, const GArray *items)
{
  gint64 first = 0;

  while (first < items->len && !g_array_index (items, gboolean, first))
    first++;
  for (gint64 every = 1; every <= items->len; every++) {
    gint64 dense = first < every ? 0 : first;
    if (fits (items, dense, every, first % every)) {
      set_layers (reading, dense, every, first % every);
      return TRUE;
    }
  }
  return FALSE;
}

static gboolean
layers_in (weft_reading *reading, const char *value, GError **error)
{
  g_autoptr (GArray) items = g_array_new (FALSE, FALSE, sizeof (gboolean));
  struct pattern p = { value, items };
  gint64 every;

  if (g_ascii_string_to_signed (value, 10, 1, MOST_LAYERS, &every, NULL)) {
    set_layers (reading, 0, every, 0);
    return TRUE;
  }
  if (!read_pattern (&p, 0) || *p.at)
    return weft_bad_input (error, "found \"%s\", wanted a number or a list as ([0]*3+[1]*58)",
                           value);
  if (items->len != weft_reading_int (reading, "num_layers"))
    return weft_bad_input (error, "the list has %u layers, the model %" G_GINT64_FORMAT, items->len,
                           weft_reading_int (reading, "num_layers"));
  if (!set_list (reading, items))
    return weft_bad_input (error,
                           "\"%s\": Weft has leading dense layers and experts in every n-th "
                           "layer, no other order",
                           value);
  return TRUE;
}

static char *
layers_out (const weft_reading *reading)
{
  gint64 first = weft_reading_int (reading, "moe_first_dense_layers");
  gint64 every = weft_reading_int (reading, "moe_layer_freq");
  gint64 offset = weft_reading_int (reading, "moe_layer_offset");
  gint64 n = weft_reading_int (reading, "num_layers");
  g_autoptr (GString) list = g_string_new ("[");

  if (first == 0 && offset == 0)
    return weft_texts_positive (every);
  if (every == 1 && first < n)
    return g_strdup_printf ("([0]*%" G_GINT64_FORMAT "+[1]*%" G_GINT64_FORMAT ")", first,
                            n - first);
  for (gint64 i = 0; i < n; i++)
    g_string_append_printf (list, "%s%d", i ? "," : "", is_expert (i, first, every, offset));
  g_string_append_c (list, ']');
  return g_string_free (g_steal_pointer (&list), FALSE);
}

/* -------------------------------------------------------------------------- pipeline, dropout */

/* As in validate_args of Megatron-LM: the number of chunks is the layers of a pipeline rank divided
 * by the layers of a chunk. */
static gboolean
chunks_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 layers = weft_reading_pipeline_layers (reading);
  gint64 ranks = weft_reading_int (reading, "pipeline_model_parallel_size");
  gint64 chunk = g_ascii_strtoll (value, NULL, 10);

  if (chunk < 1 || ranks < 1 || layers % (ranks * chunk))
    return weft_bad_input (error,
                           "%" G_GINT64_FORMAT " layers on %" G_GINT64_FORMAT
                           " pipeline ranks are no multiple of %" G_GINT64_FORMAT,
                           layers, ranks, chunk);
  weft_reading_set_int (reading, "virtual_pipeline_model_parallel_size", layers / ranks / chunk);
  return TRUE;
}

/* The number of model chunks of a pipeline rank in a layout; "none" for one chunk. */
static char *
weft_megatron_chunks (const weft_reading *reading)
{
  g_autofree struct weft_job *job = g_new0 (struct weft_job, 1);
  gint64 ranks = weft_reading_int (reading, "pipeline_model_parallel_size");

  weft_table_defaults (&weft_strategy_table, job->strategy.at);
  job->strategy.pipeline_model_parallel_layout =
      g_quark_from_string (weft_reading_text (reading, "pipeline_model_parallel_layout"));
  gint64 stages = weft_job_layout_stages (job);
  return ranks > 0 && stages > ranks && stages % ranks == 0 ? weft_texts_positive (stages / ranks)
                                                            : g_strdup ("none");
}

static char *
chunks_out (const weft_reading *reading)
{
  (void) reading; /* num-virtual-stages-per-pipeline-rank is written instead */
  return NULL;
}

/* Attention in one kernel computes its dropout in the kernel. */
static gboolean
dropout_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  gboolean unfused = g_strcmp0 (weft_reading_text (reading, "attention_backend"), "unfused") == 0;
  gboolean drops = g_ascii_strtod (value, NULL) > 0;

  weft_reading_set (reading, "attention_priced_with_dropout", drops && !unfused ? "true" : "false");
  return TRUE;
}

static char *
dropout_out (const weft_reading *reading)
{
  if (strcmp (weft_reading_text (reading, "attention_backend"), "unfused") == 0)
    return NULL;
  return g_strdup (
      strcmp (weft_reading_text (reading, "attention_priced_with_dropout"), "true") == 0 ? "0.1"
                                                                                         : "0");
}

/* --------------------------------------------------------------------------------- reading */

/* Adds the words from `first` on: keys with the words that follow them. */
static gboolean
add_words (const GArray *words, unsigned first, const char *name, weft_keys_read *out,
           GError **error)
{
  const struct weft_shell_word *word = (const struct weft_shell_word *) (void *) words->data;

  for (unsigned i = first, end; i < words->len; i = end) {
    g_autoptr (GString) value = NULL;
    g_autofree char *where = g_strdup_printf ("%s:%u", name, word[i].line);
    g_auto (GStrv) pair = g_strsplit (word[i].text, "=", 2);
    if (!g_str_has_prefix (word[i].text, "--"))
      return weft_bad_input (error, "%s: found \"%s\", wanted a key, which begins with --%s", where,
                             word[i].text,
                             *word[i].text == '$' ? "; the file does not set this variable" : "");
    if (pair[1])
      value = g_string_new (pair[1]);
    for (end = i + 1; end < words->len && !g_str_has_prefix (word[end].text, "--"); end++) {
      if (!value)
        value = g_string_new (NULL);
      g_string_append_printf (value, "%s%s", value->len ? "," : "", word[end].text);
    }
    if (!weft_keys_add (out, weft_megatron_lm.schema, "--", pair[0] + 2, value ? value->str : NULL,
                        where, error))
      return FALSE;
  }
  return TRUE;
}

/* A number among the arguments of torchrun, "--nnodes=4" or "--nnodes 4"; 0: none. */
static gint64
launch_number (const GArray *words, unsigned end, const char *flag)
{
  const struct weft_shell_word *word = (const struct weft_shell_word *) (void *) words->data;

  for (unsigned i = 0; i < end; i++) {
    g_auto (GStrv) pair = g_strsplit (word[i].text, "=", 2);
    gint64 number = 0;
    g_strdelimit (pair[0] ? pair[0] : *pair, "_", '-');
    if (!pair[0] || strcmp (pair[0], flag) != 0)
      continue;
    const char *text = pair[1] ? pair[1] : i + 1 < end ? word[i + 1].text : "";
    return g_ascii_string_to_signed (text, 10, 1, 1 << 24, &number, NULL) ? number : 0;
  }
  return 0;
}

/* The word that is the training script, or the number of words. */
static unsigned
script_at (const GArray *words)
{
  const struct weft_shell_word *word = (const struct weft_shell_word *) (void *) words->data;

  for (unsigned i = 0; i < words->len; i++)
    if (g_str_has_suffix (word[i].text, ".py") && !strchr (word[i].text, ' '))
      return i;
  return words->len;
}

/* pretrain_bert.py, pretrain_t5.py ... train other architectures with the same arguments. */
static gboolean
is_decoder (const struct weft_shell_word *script, const char *name, GError **error)
{
  g_autofree char *base = g_path_get_basename (script->text);

  if (!g_str_has_prefix (base, "pretrain_") || g_str_has_prefix (base, "pretrain_gpt"))
    return TRUE;
  return weft_bad_input (error, "%s:%u: found %s, wanted pretrain_gpt.py: Weft has decoders only",
                         name, script->line, base);
}

static gboolean
read_script (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GPtrArray) commands = weft_shell_commands (text, name, error);
  const GArray *last = NULL;

  if (!commands)
    return FALSE;
  for (unsigned i = 0; i < commands->len; i++) {
    const GArray *words = commands->pdata[i];
    if (script_at (words) < words->len)
      last = words;
  }
  if (last) {
    unsigned at = script_at (last);
    if (!is_decoder (&g_array_index (last, struct weft_shell_word, at), name, error))
      return FALSE;
    out->gpus = launch_number (last, at, "--nproc-per-node") *
                MAX (launch_number (last, at, "--nnodes"), 1);
    return add_words (last, at + 1, name, out, error);
  }
  for (unsigned i = 0; i < commands->len; i++)
    if (!add_words (commands->pdata[i], 0, name, out, error))
      return FALSE;
  return commands->len ? TRUE
                       : weft_bad_input (error,
                                         "%s: no arguments and no command that runs a .py "
                                         "file",
                                         name);
}

/* The YAML file of a functional test of Megatron-LM has the arguments as members of MODEL_ARGS. The
 * value true stands for a key without value, false for a key that is not given. */
#define TEST_ARGUMENTS "MODEL_ARGS."

static gboolean
add_test_argument (const struct weft_yaml_value *value, const char *name, weft_keys_read *out,
                   GError **error)
{
  g_autofree char *where = g_strdup_printf ("%s:%u", name, value->line);
  const char *key = value->path + strlen (TEST_ARGUMENTS);
  int at = g_str_has_prefix (key, "--") ? weft_schema_find (weft_megatron_lm.schema, key + 2) : -1;
  gboolean flag = at >= 0 && (weft_megatron_lm.schema->key[at].kind == WEFT_KEY_ON ||
                              weft_megatron_lm.schema->key[at].kind == WEFT_KEY_OFF);
  g_autofree char *text = g_strdup (value->text);

  if (!g_str_has_prefix (key, "--"))
    return weft_bad_input (error, "%s: found \"%s\", wanted a key, which begins with --", where,
                           key);
  if (flag && strcmp (text, "false") == 0)
    return TRUE;
  if (at >= 0 && weft_megatron_lm.schema->key[at].many) /* "[2 2]" or "2 2" */
    g_strdelimit (g_strstrip (g_strdelimit (text, "[]", ' ')), " ", ',');
  return weft_keys_add (out, weft_megatron_lm.schema, "--", key + 2,
                        flag && strcmp (text, "true") == 0 ? NULL : text, where, error);
}

static gboolean
read_test (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_yaml_values (text, name, error);

  for (unsigned i = 0; values && i < values->len; i++) {
    const struct weft_yaml_value *value = &g_array_index (values, struct weft_yaml_value, i);
    if (g_str_has_prefix (value->path, TEST_ARGUMENTS) &&
        !add_test_argument (value, name, out, error))
      return FALSE;
  }
  return values != NULL;
}

static gboolean
megatron_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  gboolean test = g_str_has_prefix (text, "MODEL_ARGS:") || strstr (text, "\nMODEL_ARGS:");
  return test ? read_test (text, name, out, error) : read_script (text, name, out, error);
}

/* --------------------------------------------------------------------------------- writing */

/* Whether torch must issue kernels to one queue, which validate_args asserts. */
static gboolean
needs_one_queue (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  return (k->tensor_model_parallel_size > 1 || k->context_parallel_size > 1) &&
         !k->use_megatron_fsdp && !weft_job_is_torch (job);
}

int64_t
weft_megatron_idle_experts (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  gboolean asserts = k->use_tp_pp_dp_mapping && k->pipeline_model_parallel_size > 1 &&
                     k->context_parallel_size > 1 && job->model.num_moe_experts == 0;

  return asserts ? k->tensor_model_parallel_size * k->context_parallel_size : 0;
}

static void
append_idle_experts (GString *out, const struct weft_job *job)
{
  int64_t size = weft_megatron_idle_experts (job);

  if (size > 0)
    g_string_append_printf (out, "    --expert-tensor-parallel-size %" G_GINT64_FORMAT "\n", size);
}

static void
append_key (GString *out, const struct weft_target *target, const struct weft_given *given)
{
  const struct weft_key *key = &target->schema->key[given->key];
  g_auto (GStrv) values = g_strsplit (given->value, ",", key->many ? -1 : 1);

  g_string_append_printf (out, "    --%s", key->name);
  for (unsigned i = 0; values[i]; i++) {
    g_autofree char *quoted = *values[i] && !strpbrk (values[i], "()[]|*&;<> $'\"\\")
                                  ? g_strdup (values[i])
                                  : g_shell_quote (values[i]);
    g_string_append_printf (out, " %s", quoted);
  }
  g_string_append_c (out, '\n');
}

static char *
megatron_write (const struct weft_target *target, const weft_keys_read *keys,
                const struct weft_job *job)
{
  GString *out = g_string_new ("#!/usr/bin/env bash\n");
  unsigned per_node = (unsigned) MIN ((int64_t) job->cluster.n_gpus, job->cluster.f.node_gpus);

  g_string_append_printf (out,
                          "# One strategy as arguments of pretrain_gpt.py of %s.\n"
                          "# Arguments of this script follow them: data, learning rate, number of "
                          "steps, checkpoints.\nset -euo pipefail\n\n",
                          target->release);
  if (needs_one_queue (job))
    g_string_append (out, "export CUDA_DEVICE_MAX_CONNECTIONS=1\n\n");
  if (job->strategy.deterministic_mode)
    g_string_append (out, "export NCCL_ALGO=Ring\n\n");
  g_string_append (out, "ARGUMENTS=(\n");
  for (unsigned i = 0; i < keys->given->len; i++)
    append_key (out, target, &g_array_index (keys->given, struct weft_given, i));
  append_idle_experts (out, job);
  g_string_append_printf (out,
                          ")\n\ntorchrun --nproc-per-node %u --nnodes %u \\\n"
                          "    --node-rank \"${NODE_RANK:-0}\" \\\n"
                          "    --master-addr \"${MASTER_ADDR:-localhost}\" "
                          "--master-port \"${MASTER_PORT:-6000}\" \\\n"
                          "    pretrain_gpt.py \"${ARGUMENTS[@]}\" \"$@\"\n",
                          per_node, job->cluster.n_gpus / MAX (per_node, 1));
  return g_string_free (out, FALSE);
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/megatron_lm.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), TRUE };

static const struct weft_form vocab = { vocab_in, vocab_out }, layers = { layers_in, layers_out },
                              chunks = { chunks_in, chunks_out },
                              dropout = { dropout_in, dropout_out };

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define SETS_WITH(k, value, pairs, cond, other)                                                    \
  { .key = k, .theirs = value, .sets = pairs, .when = cond, .with = other },
#define SETS_NEEDS(k, value, pairs, cond, other, why)                                              \
  { .key = k, .theirs = value, .sets = pairs, .when = cond, .with = other, .without_it = why },
#define FORM(k, pairs, name) { .key = k, .theirs = "*", .sets = pairs, .when = "", .form = &name },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define COMPUTES(setting, cond, function)                                                          \
  { .sets = #setting "=*", .when = cond, .compute = function },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/megatron.def"
#include "interop/texts.h"
};

/* Keys that Megatron-LM needs and that do not change a step. */
static const struct weft_always always[] = { { "tokenizer-type", NULL_TOKENIZER } };

const struct weft_target weft_megatron_lm = {
  .name = "megatron-lm",
  .release = "Megatron-LM core_v0.13.0",
  .doc = "arguments of pretrain_gpt.py; shell scripts, lists of arguments and tests of Megatron-LM",
  .stack = "megatron-core-0.13",
  .prefix = "--",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .always = always,
  .n_always = G_N_ELEMENTS (always),
  .same_names = TRUE,
  .read = megatron_read,
  .write = megatron_write,
};
