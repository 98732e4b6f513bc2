// The two entry points: choose the level, share the work among threads.
//
// Threads come from the OpenMP runtime that torch has already started: a second runtime of our own would spin against
// it. Its `GOMP_parallel` is handed over as a pointer, so that nothing here is compiled or linked with OpenMP.
#include "rotate.h"

#include <stdlib.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef void (*Parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
static Parallel parallel;

// Below this many elements for each thread, waking a thread costs more than it saves.
enum { GRAIN = 32768 };

static const Level *const levels[LEVELS] = {
    [BASELINE] = &level_baseline,
#ifdef ROPEWALK_HAVE_AVX2
    [AVX2] = &level_avx2,
#endif
#ifdef ROPEWALK_HAVE_AVX512
    [AVX512] = &level_avx512,
#endif
};

EXPORT int ropewalk_has_level(int level) {
  if (level < 0 || level >= LEVELS || !levels[level]) return 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (level == AVX2) return avx2;
  if (level == AVX512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
#endif
  return level == BASELINE;
}

EXPORT void ropewalk_use_threads_of(void *gomp_parallel) { parallel = (Parallel)gomp_parallel; }

// A job is cut into as many shares as threads were asked for; each thread takes shares until none is left, so that it
// does not matter how many threads really come.
typedef struct {
  const void *call;
  void (*share)(const void *call, ptrdiff_t index, ptrdiff_t shares, int *failed);
  ptrdiff_t shares, next;
  int failed;
} Job;

static void take_shares(void *data) {
  Job *job = data;
  for (;;) {
    ptrdiff_t index = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (index >= job->shares) return;
    job->share(job->call, index, job->shares, &job->failed);
  }
}

static int run(Job *job, ptrdiff_t threads, ptrdiff_t elements) {
  ptrdiff_t useful = elements / GRAIN;
  job->shares = threads < useful ? threads : useful;
  if (job->shares > 1 && parallel) {
    parallel(take_shares, job, (unsigned)job->shares, 0);
  } else {
    job->shares = 1;
    take_shares(job);
  }
  return job->failed;
}

static void turn_share(const void *call, ptrdiff_t index, ptrdiff_t shares, int *failed) {
  const Rotation *rotation = call;
  (void)failed;
  for (ptrdiff_t t = 0; t < rotation->tensors; t++) {
    const Tensor *tensor = &rotation->tensor[t];
    ptrdiff_t all = units(rotation, tensor);
    TurnUnits turn = levels[rotation->level]->turn[rotation->dtype][rotation->pairing];
    turn(rotation, tensor, all * index / shares, all * (index + 1) / shares);
  }
}

static void fill_share(const void *call, ptrdiff_t index, ptrdiff_t shares, int *failed) {
  const Phases *phases = call;
  if (levels[phases->level]->fill(phases, phases->count * index / shares, phases->count * (index + 1) / shares))
    __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
}

// Returns 1 where a position lies beyond 2^31 - 1 in size (the table is then not filled), else 0.
EXPORT int ropewalk_fill_table(const Phases *phases) {
  Job job = {.call = phases, .share = fill_share};
  return run(&job, phases->threads, 8 * phases->count * phases->pairs);
}

static void turn(const Rotation *rotation) {
  ptrdiff_t heads = 0;
  for (ptrdiff_t t = 0; t < rotation->tensors; t++) heads += rotation->tensor[t].heads;
  Job job = {.call = rotation, .share = turn_share};
  run(&job, rotation->threads, rotation->batch * heads * rotation->length * rotation->width);
}

// With positions in the place of tables: for the few tokens of a decoding step, where making the tensors of a table
// would cost more than filling it. Returns as `ropewalk_fill_table`; nothing is turned then.
static int turn_at(Rotation rotation) {
  Phases phases = {
      .level = rotation.level, .threads = 1, .wide = rotation.dtype == FLOAT64,
      .positions = rotation.positions, .narrow = rotation.narrow,
      .count = rotation.table_rows * rotation.length, .pairs = rotation.pairs, .words = rotation.words,
  };
  size_t entries = phases.count * phases.pairs, bytes = 2 * entries * (phases.wide ? sizeof(double) : sizeof(float));
  _Alignas(64) char small[16384];
  char *table = bytes <= sizeof small ? small : malloc(bytes);
  if (!table) return 2;
  rotation.cosine = phases.cosine = (intptr_t)table;
  rotation.sine = phases.sine = (intptr_t)(table + bytes / 2);
  int failed = ropewalk_fill_table(&phases);
  if (!failed) turn(&rotation);
  if (table != small) free(table);
  return failed;
}

// 0 where all went well, 1 where a position lies beyond 2^31 - 1, 2 without memory.
EXPORT int ropewalk_rotate(const Rotation *rotation) {
  if (rotation->positions) return turn_at(*rotation);
  turn(rotation);
  return 0;
}
