/* cmd_train.c -- `lockstep train`: its options. */
#include <stdlib.h>
#include <string.h>

#include "cli/chaos.h"
#include "cli/commands.h"
#include "cli/train.h"
#include "cli/values.h"
#include "lockstep/launch.h"

#define AT(field) offsetof(train_options, field)

/* ---- Values of their own kind ------------------------------------------------------------ */

static bool read_resume(const char *text, void *target, lki_message *error)
{
    lk_train_config *config = &((train_options *)target)->config;
    uint64_t         step   = 0;

    config->resume_step = -1;
    if (*text != '\0' && strcmp(text, "auto") != 0) {
        if (!lki_parse_u64(text, strlen(text), &step) || step > INT64_MAX)
            return lki_refuse(error, "must be auto, the step of a checkpoint, or nothing");
        config->resume_step = (int64_t)step;
    }
    config->resume          = true;
    config->resume_required = strcmp(text, "auto") != 0;
    return true;
}

static bool read_restart(const char *text, void *target, lki_message *error)
{
    train_options *options = target;
    uint64_t       most    = 3;
    if (*text != '\0' && (!lki_parse_u64(text, strlen(text), &most) || most > 1000000))
        return lki_refuse(error, "must be an integer up to 1000000, or nothing");
    options->restart = (uint32_t)most;
    return true;
}

static bool read_chaos(const char *text, void *target, lki_message *error)
{
    return lki_parse_chaos(text, &((train_options *)target)->chaos, error);
}

/* ---- The table --------------------------------------------------------------------------- */

/* clang-format off */
static const lki_choice orders[] = {
    { "permuted", LK_ORDER_PERMUTED, NULL },
    { "sequential", LK_ORDER_SEQUENTIAL, NULL },
    { "torch-distributed", LK_ORDER_TORCH_DISTRIBUTED, NULL },
    { "torch-unshuffled", LK_ORDER_TORCH_UNSHUFFLED, NULL },
    { "weighted", LK_ORDER_WEIGHTED, "is what --weights FILE makes of it" },
    { NULL, 0, NULL },
};
static const lki_choice strategies[] = {
    { "ddp", 0, NULL },
    { "zero1", 0, NULL },
    { "zero2", 0, NULL },
    { "zero3", 0, NULL },
    { "hybrid", 0, NULL },
    { "single", 0, NULL },
    { "NO_SHARD", 0, NULL }, /* FSDP's names of ddp, zero2, zero3 and hybrid */
    { "SHARD_GRAD_OP", 0, NULL },
    { "FULL_SHARD", 0, NULL },
    { "HYBRID_SHARD", 0, NULL },
    { "fsdp", 0, "is zero3 here, which FULL_SHARD means as well; SHARD_GRAD_OP is zero2, and "
                 "HYBRID_SHARD hybrid" },
    { NULL, 0, NULL },
};
static const lki_choice optimizers[] = {
    { "sgd", LK_SGD, NULL },
    { "adamw", LK_ADAMW, NULL },
    { "lars", LK_LARS, NULL },
    { "lamb", LK_LAMB, NULL },
    { "lion", LK_LION, NULL },
    { NULL, 0, NULL },
};
static const lki_choice weights[] = {
    { "model", LK_WEIGHTS_MODEL, NULL },
    { "ema", LK_WEIGHTS_EMA, NULL },
    { NULL, 0, NULL },
};
static const lki_choice judges[] = {
    { "loss", LK_BEST_BY_LOSS, NULL },
    { "accuracy", LK_BEST_BY_ACCURACY, NULL },
    { NULL, 0, NULL },
};
static const lki_choice momenta[] = {
    { "gradients", LK_MOMENTUM_OF_GRADIENTS, NULL },
    { "steps", LK_MOMENTUM_OF_STEPS, NULL },
    { NULL, 0, NULL },
};
static const lki_choice schedules[] = {
    { "constant", LK_CONSTANT, NULL }, { "linear", LK_LINEAR, NULL },
    { "cosine", LK_COSINE, NULL },     { "step", LK_STEP, NULL },
    { "poly", LK_POLY, NULL },         { "wsd", LK_WSD, NULL },
    { "one-cycle", LK_ONE_CYCLE, NULL },
    { NULL, 0, NULL },
};
static const lki_choice lr_rules[] = {
    { "none", LK_SCALE_LR_NONE, NULL }, { "linear", LK_SCALE_LR_LINEAR, NULL },
    { "sqrt", LK_SCALE_LR_SQRT, NULL }, { NULL, 0, NULL },
};
static const lki_choice precisions[] = {
    { "fp32", LK_F32, NULL },
    { "bf16", LK_BF16, NULL },
    { "fp16", LK_F16, NULL },
    { NULL, 0, NULL },
};
static const lki_choice travels[] = {
    { "fp32", LK_F32, NULL },
    { "bf16", LK_BF16, NULL },
    { "fp16", LK_F16, NULL },
    { "int8", LK_I8, NULL },
    { "int4", LK_I4, NULL },
    { NULL, 0, NULL },
};
static const lki_choice reads[] = {
    { "fp32", LK_F32, NULL },
    { "int8", LK_I8, NULL },
    { NULL, 0, NULL },
};
static const lki_choice batchnorms[] = {
    { "ghost", LK_BATCHNORM_GHOST, NULL },
    { "sync", LK_BATCHNORM_SYNC, NULL },
    { NULL, 0, NULL },
};
static const lki_choice kernels[] = {
    { "own", 0, NULL },
    { "onednn", 0, NULL },
    { NULL, 0, NULL },
};
static const lki_choice isas[] = {
    { "auto", 0, NULL }, { "avx512_bf16", 0, NULL }, { "avx512", 0, NULL }, { "avx2", 0, NULL },
    { "neon", 0, NULL }, { "portable", 0, NULL },    { NULL, 0, NULL },
};
static const lki_choice endings[] = {
    { "stop", LK_ON_FAILURE_STOP, NULL },
    { "continue", LK_ON_FAILURE_CONTINUE, NULL },
    { NULL, 0, NULL },
};
static const lki_choice modes[] = {
    { "processes", LKI_MODE_PROCESSES, NULL },
    { "threads", LKI_MODE_THREADS, NULL },
    { NULL, 0, NULL },
};

/* What an option would do nothing without. */
static const lki_need gpt = { "MODEL", { "gpt" } }, resnet = { "MODEL", { "resnet" } },
                      deep = { "MODEL", { "gpt", "resnet" } },
                      mlp = { "MODEL", { "mlp" } }, heavy = { "optimizer", { "sgd", "lars" } },
                      moments = { "optimizer", { "adamw", "lamb", "lion" } },
                      ratios = { "optimizer", { "adamw", "lamb", "lars" } },
                      lars = { "optimizer", { "lars" } },
                      correcting = { "optimizer", { "adamw", "lamb" } },
                      dynamic = { "loss-scale", { "pytorch", "deepspeed" } },
                      deepspeed = { "loss-scale", { "deepspeed" } },
                      steps = { "schedule", { "step" } },
                      falling = { "schedule", { "linear", "cosine", "poly", "wsd", "one-cycle" } },
                      poly = { "schedule", { "poly" } }, wsd = { "schedule", { "wsd" } },
                      scaled = { "scale-lr", { "linear", "sqrt" } },
                      validation = { "validation", { NULL } },
                      evaluations = { "eval-every", { NULL } },
                      ema = { "ema", { NULL } },
                      patience = { "patience", { NULL } }, best = { "keep-best", { NULL } },
                      checkpoint = { "checkpoint", { NULL } };

/* Written out where a row needs more than the short forms carry. */
const lki_option lki_train_table[] = {
    LKI_POSITIONAL("MODEL", AT(config.model), true, "gpt, resnet or mlp"),
    { .name = "config", .type = LKI_OPTION_CONFIG, .value = "FILE", .offset = AT(file),
      .help = "read options from a TOML file, a key each; the command line wins over it" },

    { .group = "gpt", .needs = &gpt, .name = "layers", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.model_options.layers), .low = 1, .high = 1024, .preset = "4",
      .help = "transformer blocks" },
    { .needs = &gpt, .name = "heads", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.model_options.heads), .low = 1, .high = 1024, .preset = "4",
      .help = "attention heads; they divide --width" },
    { .needs = &gpt, .name = "width", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.model_options.width), .low = 1, .high = 1 << 20, .preset = "128",
      .help = "embedding width" },
    { .needs = &gpt, .name = "context", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.context), .low = 1, .high = 1 << 20, .preset = "64",
      .help = "tokens of a sample" },
    { .needs = &gpt, .name = "dropout", .type = LKI_OPTION_FLOAT, .value = "P",
      .offset = AT(config.model_options.dropout), .range = &lki_range_fraction, .preset = "0",
      .help = "probability of dropping a value" },
    { .group = "resnet", .needs = &resnet, .name = "depth", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.model_options.depth), .low = 1, .high = 4096, .preset = "20",
      .help = "20, 32 or 56 (the CIFAR family), or 18 (ResNet-18)" },
    { .needs = &resnet, .name = "zero-gamma", .type = LKI_OPTION_FLAG,
      .offset = AT(config.model_options.zero_gamma),
      .help = "start the last norm of every residual block at 0" },
    { .needs = &resnet, .name = "batchnorm", .type = LKI_OPTION_CHOICE, .value = "KIND",
      .offset = AT(config.model_options.batchnorm), .choices = batchnorms, .preset = "ghost",
      .help = "statistics of each virtual worker's micro-batch, or (sync) of all together" },
    { .group = "mlp", .needs = &mlp, .name = "hidden", .type = LKI_OPTION_U32_LIST,
      .value = "N,N...", .offset = AT(config.model_options.hidden), .list_max = 8, .low = 1,
      .high = 1 << 20, .count_offset = AT(config.model_options.hidden_count), .preset = "512,512",
      .help = "widths of the hidden layers" },

    { .group = "data", .required = true, .name = "data", .type = LKI_OPTION_STRING,
      .value = "SOURCE", .offset = AT(config.data),
      .help = "text:FILE|DIR, tokens:FILE, shards:DIR, idx:IMAGES,LABELS, cifar10:DIR, npy:X,Y, "
              "tar:FILE|DIR, docs:FILE|DIR, stream:FILE|- or synthetic:SPEC" },
    LKI_REAL("validation", "FRACTION", AT(config.validation), &lki_range_fraction, "0",
             "part of the data kept for validation"),
    { .required = true, .name = "global-batch", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.global_batch), .low = 1, .high = 1 << 30,
      .help = "samples of a step, over all workers" },
    LKI_U32("micro-batch", "N", AT(config.micro_batch), 1, 1 << 24, "8, 4, 2 or 1",
            "samples computed at once; part of what defines the result"),
    LKI_U32("virtual-workers", "V", AT(config.virtual_workers), 1, 4096,
            "the largest divisor of global batch / micro-batch up to 32",
            "fixed slices of every batch; part of what defines the result"),
    LKI_U64("seed", "N", AT(config.seed), 0, UINT64_MAX, "0",
            "of initial values, order, dropout and offsets"),
    { .needs = &validation, .name = "split-seed", .type = LKI_OPTION_U64, .value = "N",
      .offset = AT(config.split_seed), .high = UINT64_MAX, .preset = "0",
      .help = "which images are kept for validation" },
    { .needs = &validation, .name = "fold", .type = LKI_OPTION_U32, .value = "K",
      .offset = AT(config.fold), .low = 1, .high = 1 << 30, .preset = "1",
      .help = "the K-th part of that size is kept; for cross-validation" },
    { .name = "augment", .type = LKI_OPTION_CUSTOM, .value = "crop=P,flip",
      .read = lki_read_augment, .preset = "none",
      .help = "images differ each time: moved by up to P pixels (or resized-crop=SHARE: a part of "
              "that area at least, made to fit), every other one mirrored" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "order", "NAME", AT(config.order), orders, "permuted",
               "of the samples in an epoch; torch-...: of PyTorch's DistributedSampler, a replica "
               "for each virtual worker (see docs/data.md)"),
    LKI_STRING("weights", "FILE", AT(config.weights), NULL,
               "draw samples with replacement, by a number for each (text or .npy)"),
    LKI_STRING("loss-weights", "FILE", AT(config.loss_weights), NULL,
               "what each sample counts for in the loss, a number for each (text or .npy)"),
    { .name = "ignore-label", .type = LKI_OPTION_CUSTOM, .value = "N", .read = lki_read_ignored,
      .preset = "none", .help = "samples or tokens with this label count for nothing" },
    LKI_FLAG("drop-last", AT(config.drop_last), "leave out the short batch at the end of an epoch"),

    { .group = "workers (they never change the result)", .name = "workers",
      .type = LKI_OPTION_U32_SPAN, .value = "N", .letter = 'n', .low = 1, .high = 4096,
      .offset = AT(config.workers), .count_offset = AT(config.workers_least),
      .preset = "one per core, at most V",
      .help = "worker processes on this machine; MIN:MAX begins with MAX, goes on without those "
              "that are lost (--on-failure continue) and ends when fewer than MIN are left" },
    LKI_U32("threads", "N", AT(config.threads), 1, 1024, "1", "threads of each worker"),
    { .needs = &checkpoint, .name = "restart", .type = LKI_OPTION_CUSTOM, .value = "N",
      .value_optional = true, .read = read_restart, .preset = "never; alone: 3",
      .help = "when a worker is killed or a host is lost, start all again from the newest "
              "checkpoint, N times without a newer one; where the others go on, start one in its "
              "place, which enters between two steps" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "on-failure", "WHAT", AT(on_failure), endings, "stop",
               "what becomes of the others when a worker or a whole host is lost: they "
               "end, or take its part of the work over in the middle of the step; then SIGTERM to "
               "a worker makes it leave when its step is over"),
    LKI_REAL("audit", "RATE", AT(config.audit), &lki_range_share, "none",
             "make this share of the virtual workers, up to 1, on a second worker as well, and "
             "compare: finds faulty processors and memory, and names them"),
    { .name = "rebalance", .type = LKI_OPTION_CUSTOM, .value = "WHEN",
      .read = lki_read_rebalance, .preset = "auto",
      .help = "virtual workers move from slow workers to fast ones between steps: auto (with ddp "
              "and zero1), on (or say why not), off, or random:SEED, a test: after every step" },
    { .name = "duplicate", .type = LKI_OPTION_CUSTOM, .value = "WHEN",
      .read = lki_read_duplicate, .preset = "off",
      .help = "a worker without work makes virtual workers of one on its host that is late, also "
              "one that is begun, and the first result counts: off, auto (with ddp and zero1, "
              "where it takes no memory), or on (or say why not)" },
    LKI_U32("backup-workers", "B", AT(config.backup_workers), 0, 4095, "0",
            "drop the B workers that are last from every step, with all their samples (with ddp "
            "and zero1 on one host); not exact: the result depends on who is slow"),
    { .name = "chaos", .type = LKI_OPTION_CUSTOM, .value = "SEED,RATE", .read = read_chaos,
      .preset = "none", .help = LKI_CHAOS_HELP },
    LKI_U32("loader-threads", "N", AT(config.loader_threads), 1, 256, "1",
            "threads of each worker that prepare its micro-batches"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "worker-mode", "MODE", AT(worker_mode), modes, "processes",
               "what a worker is"),
    LKI_CHOICE(LKI_OPTION_NAME, "strategy", "NAME", AT(config.strategy), strategies, "ddp",
               "how the workers keep one model in step"),
    LKI_CHOICE(LKI_OPTION_NAME, "isa", "NAME", AT(config.isa), isas, "auto",
               "instruction set of the kernels"),
    { .name = "offload", .type = LKI_OPTION_CUSTOM, .value = "WHAT,WHAT:DIR", .once = true,
      .read = lki_read_offload, .preset = "none",
      .help = "in files in DIR, a part for each worker, and not in memory: optimizer (its state), "
              "parameters (zero3 and hybrid), activations (of --activation-checkpointing), or "
              "several: optimizer,parameters:DIR" },
    { .name = "host-memory", .type = LKI_OPTION_MEBIBYTES, .value = "MIB",
      .offset = AT(config.host_memory), .range = &lki_range_positive, .preset = "all there is",
      .help = "what the workers of a host may have between them: checked before they start, and "
              "held to while they run" },
    { .name = "bucket-mb", .type = LKI_OPTION_MEBIBYTES, .value = "MIB",
      .offset = AT(config.bucket_bytes), .range = &lki_range_positive, .preset = "25",
      .help = "gradients that travel together" },
    { .name = "first-bucket-mb", .type = LKI_OPTION_MEBIBYTES, .value = "MIB",
      .offset = AT(config.first_bucket_bytes), .range = &lki_range_positive, .preset = "1",
      .help = "the first bucket, which can start early" },
    LKI_U32("unit-buffers", "N", AT(config.unit_buffers), 1, 1000000, "2 or 3",
            "zero3: units of parameters (buckets) that a host has room for"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "gather-dtype", "NAME", AT(config.gather_dtype), reads, "fp32",
               "what parameters are read as, and travel as with zero3 and hybrid: int8 takes a "
               "quarter of the bytes; their owners keep them fp32; not exact"),
    { .name = "keep-gathered", .type = LKI_OPTION_FLAG, .offset = AT(config.keep_gathered),
      .help = "--gather-dtype int8: keep what came of each unit; backward gathers nothing then" },
    LKI_U32("shard-hosts", "K", AT(config.shard_hosts), 1, 1000000, "1",
            "hybrid: each K neighbouring hosts share a model, and others have one of their own"),
    { .name = "buddies", .type = LKI_OPTION_FLAG, .offset = AT(config.buddies),
      .help = "zero1 to zero3 with --on-failure continue: two neighbouring hosts keep each other's "
              "part of the model as well, so that either may be lost" },
    { .name = "timeout", .type = LKI_OPTION_SECONDS, .value = "SECONDS",
      .offset = AT(config.timeout_ms), .range = &lki_range_positive, .preset = "30",
      .help = "how long workers wait for each other before they name who is missing" },

    { .group = "training", .name = "steps", .type = LKI_OPTION_U64, .value = "N",
      .offset = AT(config.steps), .low = 1, .high = UINT64_MAX >> 16,
      .help = "updates to make; this or --epochs" },
    LKI_REAL("epochs", "X", AT(config.epochs), &lki_range_positive, NULL, "passes over the data"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "optimizer", "NAME", AT(config.optimizer.kind), optimizers,
               "sgd", "update rule"),
    { .required = true, .name = "lr", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.schedule.lr), .range = &lki_range_positive,
      .help = "learning rate; with --scale-lr, the one for --base-batch" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "scale-lr", "RULE", AT(config.scale_lr), lr_rules, "none",
               "times global batch / base batch (linear: for sgd, with a warmup) or its square "
               "root (sqrt: for adamw and lamb)"),
    { .needs = &scaled, .name = "base-batch", .type = LKI_OPTION_U32, .value = "B",
      .offset = AT(config.base_batch), .low = 1, .high = 1 << 30, .preset = "256",
      .help = "the batch that --lr fits" },
    { .needs = &falling, .name = "min-lr", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.schedule.min_lr), .range = &lki_range_not_negative,
      .preset = "0; one-cycle: lr / 250000", .help = "where schedules that fall end" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "schedule", "NAME", AT(config.schedule.kind), schedules,
               "constant", "the learning rate over the steps"),
    LKI_U64("warmup", "N", AT(config.schedule.warmup), 0, UINT64_MAX >> 16,
            "0; one-cycle: 0.3 of the steps",
            "steps in which the rate rises; large batches need it (Goyal et al.: 5 epochs)"),
    LKI_REAL("warmup-epochs", "X", AT(config.warmup_epochs), &lki_range_positive, NULL,
             "the same in epochs"),
    LKI_REAL("warmup-from", "X", AT(config.schedule.warmup_from), &lki_range_not_negative,
             "0; with --scale-lr --lr, one-cycle lr / 25", "the rate from which it rises"),
    { .needs = &poly, .name = "power", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.schedule.power), .range = &lki_range_positive, .preset = "2",
      .help = "schedule poly: of the part of the steps that is left" },
    { .needs = &wsd, .name = "decay", .type = LKI_OPTION_U64, .value = "N",
      .offset = AT(config.schedule.decay), .low = 1, .high = UINT64_MAX >> 16,
      .preset = "a tenth of the steps",
      .help = "schedule wsd (warmup, stable, decay): the last steps, in which the rate falls" },
    { .needs = &steps, .name = "milestones", .type = LKI_OPTION_U64_LIST, .value = "N,N...",
      .offset = AT(config.schedule.milestones), .list_max = 8, .low = 1, .high = UINT64_MAX >> 16,
      .count_offset = AT(config.schedule.milestone_count),
      .help = "schedule step: the steps at which the rate falls" },
    { .needs = &steps, .name = "gamma", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.schedule.gamma), .range = &lki_range_positive, .preset = "0.1",
      .help = "schedule step: the factor at each milestone" },
    { .needs = &heavy, .name = "momentum", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.optimizer.momentum), .range = &lki_range_fraction,
      .preset = "0; lars: 0.9", .help = "of sgd and lars" },
    { .needs = &heavy, .name = "nesterov", .type = LKI_OPTION_FLAG,
      .offset = AT(config.optimizer.nesterov), .help = "Nesterov's form of the momentum" },
    { .needs = &heavy, .name = "momentum-of", .type = LKI_OPTION_CHOICE, .value = "WHAT",
      .offset = AT(config.optimizer.momentum_of), .choices = momenta,
      .preset = "gradients; lars: steps",
      .help = "what the momentum holds; of gradients, a change of the learning rate reaches all "
              "of it (momentum correction)" },
    { .needs = &lars, .name = "trust", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.optimizer.trust), .range = &lki_range_positive, .preset = "0.001",
      .help = "lars: a tensor's step in proportion to its norm" },
    { .needs = &moments, .name = "betas", .type = LKI_OPTION_REAL_PAIR, .value = "A,B",
      .offset = AT(config.optimizer.beta1), .range = &lki_range_unit_open,
      .preset = "0.9,0.999; lion: 0.9,0.99", .help = "of adamw, lamb and lion" },
    { .needs = &ratios, .name = "eps", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.optimizer.eps), .range = &lki_range_positive,
      .preset = "1e-8; lamb: 1e-6; lars: 0", .help = "added to what is divided by" },
    { .needs = &correcting, .name = "no-bias-correction", .type = LKI_OPTION_FLAG,
      .offset = AT(config.optimizer.uncorrected),
      .help = "adamw and lamb: take moments as they are, too small in the first steps" },
    LKI_REAL("weight-decay", "X", AT(config.optimizer.weight_decay), &lki_range_not_negative, "0",
             "norms and biases are left out"),
    LKI_FLAG("decay-all", AT(config.optimizer.decay_all),
             "norms and biases too have weight decay and, with lars and lamb, a trust ratio"),
    { .name = "group", .type = LKI_OPTION_CUSTOM, .value = "PATTERN:lr=X,decay=Y",
      .read = lki_read_group, .preset = "none",
      .help = "for parameters with such names (* is anything): times the learning rate, and their "
              "own weight decay; several with ; or by repeating, the last that fits wins" },
    LKI_REAL("clip-norm", "X", AT(config.clip_norm), &lki_range_positive, "none",
             "largest norm of the gradient"),
    LKI_REAL("clip-value", "X", AT(config.clip_value), &lki_range_positive, "none",
             "largest element of the gradient"),
    LKI_REAL("noise-scale", "DECAY", AT(config.noise_decay), &lki_range_unit_open, "none",
             "log the critical batch size, from averages over steps that decay so (0.99)"),
    LKI_REAL("ema", "DECAY", AT(config.optimizer.ema), &lki_range_unit_open, "none",
             "keep a moving mean of the weights, such as 0.999"),
    { .needs = &deep, .name = "activation-checkpointing", .type = LKI_OPTION_FLAG,
      .offset = AT(config.model_options.activation_checkpointing),
      .help = "keep what layers put out, compute the rest again in backward: less memory" },
    LKI_CHOICE(LKI_OPTION_CHOICE, "precision", "NAME", AT(config.precision), precisions, "fp32",
               "of activations and their gradients; weights and sums are fp32 always"),
    LKI_CHOICE(LKI_OPTION_CHOICE, "comm-dtype", "NAME", AT(config.comm_dtype), travels, "fp32",
               "what gradients travel as: bf16 and fp16 take half the bytes between hosts, int8 a "
               "quarter and int4 an eighth (not exact), and round each virtual worker's gradient "
               "and every sum of the tree, on one host, too: other bits, but the same for any "
               "workers"),
    { .name = "loss-scale", .type = LKI_OPTION_CUSTOM, .value = "RULE",
      .read = lki_read_loss_scale, .preset = "pytorch",
      .help = "pytorch or deepspeed: by their rules, skipping steps that overflow; none; or a "
              "power of two to scale by always" },
    { .needs = &dynamic, .name = "initial-scale", .type = LKI_OPTION_CUSTOM, .value = "X",
      .read = lki_read_initial_scale, .preset = "65536",
      .help = "what a dynamic scale begins with" },
    { .needs = &dynamic, .name = "scale-window", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.scaling.window), .low = 1, .high = 1 << 30,
      .preset = "2000; deepspeed: 1000", .help = "good steps in a row that double it" },
    { .needs = &deepspeed, .name = "hysteresis", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.scaling.hysteresis), .low = 1, .high = 1 << 20, .preset = "2",
      .help = "deepspeed: the overflow that first halves it" },
    LKI_CHOICE(LKI_OPTION_NAME, "kernels", "NAME", AT(kernels), kernels, "own",
               "whose kernels multiply; what onednn's give is not exact"),

    { .group = "files", .name = "checkpoint", .type = LKI_OPTION_STRING, .value = "DIR",
      .offset = AT(config.checkpoint), .help = "write checkpoints here, one at the end" },
    { .needs = &checkpoint, .name = "checkpoint-every", .type = LKI_OPTION_U64, .value = "N",
      .offset = AT(config.checkpoint_every), .low = 1, .high = UINT64_MAX >> 16, .preset = "none",
      .help = "also write one every N steps" },
    { .needs = &checkpoint, .name = "checkpoint-async", .type = LKI_OPTION_FLAG,
      .offset = AT(config.checkpoint_async),
      .help = "copy what they hold, which takes as much memory, and write them while the run "
              "goes on" },
    { .needs = &checkpoint, .name = "keep", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.keep), .low = 1, .high = 1 << 20, .preset = "3",
      .help = "the newest checkpoints that are kept" },
    { .needs = &checkpoint, .name = "keep-best", .type = LKI_OPTION_U32, .value = "K",
      .offset = AT(config.keep_best), .low = 1, .high = LK_BEST_MAX, .preset = "none",
      .help = "also write one at each of the K best evaluations, kept beside the newest" },
    { .needs = &best, .name = "best-by", .type = LKI_OPTION_CHOICE, .value = "WHAT",
      .offset = AT(config.best_by), .choices = judges, .preset = "loss",
      .help = "which evaluation is better" },
    { .name = "resume", .type = LKI_OPTION_CUSTOM, .value = "auto|STEP", .value_optional = true,
      .read = read_resume,
      .help = "go on from the newest checkpoint in DIR, or that of STEP; auto: if there is one" },
    LKI_STRING("init", "FILE", AT(config.init), NULL,
               "start from the weights of a safetensors file"),
    LKI_STRING("log", "FILE", AT(config.log), NULL, "one JSON object a step"),
    LKI_STRING("trace", "FILE", AT(config.trace), NULL,
               "where the time of every worker goes, for ui.perfetto.dev (see docs/tracing.md)"),
    LKI_STRING("flight", "DIR", AT(flight), NULL,
               "keep a record of what each worker did last, for inspect --flight DIR"),
    LKI_U64("eval-every", "N", AT(config.eval_every), 1, UINT64_MAX >> 16, "at the end",
            "evaluate on the validation part every N steps"),
    { .needs = &ema, .name = "eval-weights", .type = LKI_OPTION_CHOICE, .value = "WHICH",
      .offset = AT(config.eval_weights), .choices = weights, .preset = "ema",
      .help = "evaluate the model's weights as they are, or their moving mean" },
    LKI_FLAG("quiet", AT(config.quiet), "no progress on stderr"),

    { .group = "ends before --steps (each evaluates, saves and is a normal end)",
      .needs = &evaluations, .name = "patience", .type = LKI_OPTION_U32, .value = "N",
      .offset = AT(config.patience), .low = 1, .high = 1 << 30, .preset = "none",
      .help = "evaluations in a row that may bring no lower loss" },
    { .needs = &patience, .name = "min-delta", .type = LKI_OPTION_REAL, .value = "X",
      .offset = AT(config.min_delta), .range = &lki_range_not_negative, .preset = "0",
      .help = "how much lower a loss is, at least, to count as lower" },
    LKI_REAL("max-epochs", "X", AT(config.max_epochs), &lki_range_positive, "none",
             "passes over the data"),
    LKI_U64("max-samples", "N", AT(config.max_samples), 1, UINT64_MAX >> 16, "none",
            "samples; the step with the last of them is the last"),
    LKI_U64("max-tokens", "N", AT(config.max_tokens), 1, UINT64_MAX >> 16, "none",
            "tokens of text, likewise"),
    { .name = "max-time", .type = LKI_OPTION_SECONDS, .value = "SECONDS",
      .offset = AT(config.max_time_ms), .range = &lki_range_positive, .preset = "none",
      .help = "time since the run was started or resumed; the step under way is finished" },

    LKI_NODE_OPTIONS(AT(nodes)),
    LKI_OPTIONS_END,
};
/* clang-format on */

/* ---- The command ------------------------------------------------------------------------- */

static void print_weights(const train_options *options)
{
    printf("weights %s\n", options->result.weights);
}

static int train_main(int argc, char **argv)
{
    train_options options = LKI_TRAIN_OPTIONS_INIT;
    int           result  = lki_options_parse(&lki_command_train, argc, argv, &options);
    options.command       = &lki_command_train;
    options.print         = print_weights;
    if (result < 0)
        return lki_train_start(&options, argv);
    free(options.file.text);
    return result;
}

const lki_command lki_command_train = {
    .name    = "train",
    .summary = "train a model on this machine's cores",
    .usage   = "MODEL --data SOURCE --global-batch N --steps N --lr X [options]",
    .about =
        "Trains a built-in model with N worker processes.  The result is a function of the\n"
        "options under model, data and training: the number of workers, their threads, the\n"
        "instruction set and the buckets change how long it takes and not one bit of the weights.\n"
        "Progress goes to stderr; the last line of stdout is `weights` and the hash of the\n"
        "trained weights.  Ctrl-C saves (with --checkpoint) and leaves with status 75; --resume\n"
        "goes on from there.",
    .examples =
        "  lockstep train gpt --data text:book.txt --validation 0.1 --workers 2 \\\n"
        "      --global-batch 32 --steps 500 --optimizer adamw --lr 1e-3 --checkpoint run1\n"
        "  lockstep train resnet --data idx:images.gz,labels.gz --validation 0.2 \\\n"
        "      --global-batch 128 --epochs 5 --momentum 0.9 --lr 0.1 --schedule cosine\n"
        "  lockstep train mlp --config mlp.toml --seed 7",
    .options = lki_train_table,
    .main    = train_main,
};
