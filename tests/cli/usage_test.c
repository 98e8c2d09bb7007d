/* usage_test.c -- overview and help of the command, and one clear error for each mistake.
 *
 * Method: the command itself.  A usage error has status 2 and prints nothing on stdout.  The
 *         message begins with the command's name and contains the words of the test's table.  No
 *         worker has been started.
 */
#include "cli/command.h"

static void the_overview_shows_commands_and_examples(void **state)
{
    static command_result r;
    run_command(&r, *state, "");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "usage: lockstep COMMAND");
    run_command(&r, *state, "--help");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    assert_says(r.out, "lockstep train gpt --data");
    run_command(&r, *state, "--version");
    assert_says(r.out, "lockstep 0.");
}

static void every_command_has_help_and_a_man_page(void **state)
{
    static command_result names, r;
    unsigned              count = 0;
    run_command(&names, *state, "help --names");
    for (char *name = strtok(names.out, "\n"); name != NULL; name = strtok(NULL, "\n"), count++) {
        char line[64], usage[64];
        (void)snprintf(line, sizeof line, "%s --help", name);
        (void)snprintf(usage, sizeof usage, "usage: lockstep %s", name);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_says(r.out, usage);
        (void)snprintf(line, sizeof line, "help --man %s", name);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_says(r.out, ".SH SYNOPSIS");
    }
    assert_true(count >= 7);
}

#define OF_GOOD \
    " mlp --data synthetic:images=64,h=4,w=4,c=1,classes=3 --global-batch 8 --lr 0.1 "
#define GOOD "train" OF_GOOD
#define LARGE                                                                                      \
    "train mlp --data synthetic:images=1024,h=2,w=2,c=1,classes=2 --lr 0.1 --steps 1 "             \
    "--global-batch 512 --virtual-workers 512 --compress sign "

static const struct {
    const char *arguments, *message;
} mistakes[] = {
    { "tarin", "there is no command tarin; did you mean train?" },
    { "chart", "there is no command chart" },
    { "train", "MODEL is missing" },
    { "train mlp gpt", "unexpected argument gpt" },
    { "train gpt /dev/null", "unexpected argument /dev/null; did you mean --data /dev/null?" },
    { "train /dev/null", "if it is the data, write gpt --data /dev/null" },
    { "train gpt --data out err out --lr x",
      "lockstep train: several files are given, as by a pattern that the shell expands, and --data "
      "takes one file or one folder: give the folder, such as --data ., or join the files, as in "
      "cat FILE FILE >all.txt\nlockstep train: --lr x: must be a number above 0\n(" },
    { "train gpt out err",
      "or join the files, as in cat FILE FILE >all.txt\n(lockstep train --help" },
    { "train mlp --hepl", "unknown option --hepl; did you mean --help?" },
    { "train mlp --restart 3", "unexpected argument 3; did you mean --restart=3?" },
    { "train mlp --global-batch 8 --lr 1", "--data is missing: what to train on: a file" },
    { "train mlp --data", "--data needs a value: --data SOURCE, what to train on: a file" },
    { "train --lr -1", "MODEL is missing" },
    { "train --lr -1", "--lr -1: must be a number above 0\nlockstep train: " },
    { "train bert --batch-size 4 --lr x",
      "lockstep train: MODEL bert: there is no such model; there are gpt, llama, resnet and mlp\n"
      "lockstep train: unknown option --batch-size: here it is --global-batch N, the samples of a "
      "step over all workers\nlockstep train: --lr x: must be a number above 0\nlockstep train: "
      "--data is missing" },
    { "train resnet18", "MODEL resnet18: there is no such model; write resnet --depth 20" },
    { GOOD "--steps 1 --per_device_train_batch_size 4", "here it is --micro-batch N per pass" },
    { GOOD "--steps 1 --bf16", "unknown option --bf16: here it is --precision bf16" },
    { GOOD "--steps 1 --nproc-per-node 4", "here it is --workers N" },
    { GOOD "--steps 1 -np 4", "unknown option -np: here it is --workers N" },
    { GOOD "--steps 1 -n4", "unknown option -n4; did you mean -n 4?" },
    { "sample x --max-new-tokens 5", "here it is --tokens N" },
    { "sample x --max-tokens 5", "here it is --tokens N" },
    { "resume nowhere --steps 3", "give the --checkpoint directory of a run" },
    { "train gpt --data nowhere.txt", "--data nowhere.txt: there is no such file or folder" },
    { "train gpt --data txt:a", "there is no kind 'txt', did you mean text" },
    { "train mlp --data /dev/null", "is a pipe or a device; write stream:PATH" },
    { "train nosuch --data synthetic:images=64,classes=3 --global-batch 8 --steps 1 --lr 1",
      "gpt, llama, resnet and mlp" },
    { GOOD "--steps 1 --hidden 1000000,1000000", "but the machine has" },
    { GOOD "--steps 0", "--steps 0: must be an integer of at least 1" },
    { GOOD "--steps -3", "--steps -3: must be an integer" },
    { GOOD "--steps 1.5", "--steps 1.5: must be an integer" },
    { GOOD "--steps 1 --epochs 1", "--epochs" },
    { GOOD "--steps 1 --lr -1", "--lr -1: must be a number above 0" },
    { GOOD "--steps 1 --lr nan", "--lr nan: must be a number above 0" },
    { GOOD "--steps 1 --lr inf", "--lr inf: must be a number above 0" },
    { GOOD "--steps 1 --wokers 2", "unknown option --wokers; did you mean --workers?" },
    { GOOD "--steps 1 --workers 0", "--workers 0: must be an integer from 1 to 4096" },
    { GOOD "--steps 1 --workers 4:2", "MIN:MAX must be integers from 1 to 4096, in order" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 3", "--virtual-workers" },
    { GOOD "--steps 1 --micro-batch 3", "--micro-batch 3" },
    { GOOD "--steps 1 --virtual-workers 3", "--virtual-workers 3" },
    { GOOD "--steps 1 --layers 2", "--layers needs MODEL gpt or llama; this is mlp" },
    { GOOD "--steps 1 --depth 20", "--depth needs MODEL resnet; this is mlp" },
    { GOOD "--steps 1 --activation-checkpointing",
      "--activation-checkpointing needs MODEL gpt, llama or resnet; this is mlp" },
    { GOOD "--steps 1 --no-zero-gamma", "--zero-gamma needs MODEL resnet; this is mlp" },
    { GOOD "--steps 1 --betas .9,.99",
      "--betas needs --optimizer adamw, onebit-adam, lamb, onebit-lamb, lion or yogi; this is" },
    { GOOD "--steps 1 --eps 1e-6", "--eps needs --optimizer adamw, onebit-adam, lamb, onebit-" },
    { GOOD "--steps 1 --optimizer adamw --momentum 0.9",
      "--momentum needs --optimizer sgd or lars; this is adamw" },
    { GOOD "--steps 1 --nesterov --optimizer adamw",
      "--nesterov needs --optimizer sgd or lars; this is adamw" },
    { GOOD "--steps 1 --trust-coefficient 0.01", "--trust-coefficient needs --optimizer lars; this "
                                                 "is sgd" },
    { GOOD "--steps 9 --milestones 5", "--milestones needs --schedule step; this is constant" },
    { GOOD "--steps 9 --gamma 0.5 --schedule linear",
      "--gamma needs --schedule step; this is linear" },
    { GOOD "--steps 9 --min-lr 0.01",
      "--min-lr needs --schedule linear, cosine, poly, wsd or one-cycle; this is constant" },
    { GOOD "--steps 9 --min-lr 0.01 --schedule step",
      "--min-lr needs --schedule linear, cosine, poly, wsd or one-cycle; this is step" },
    { GOOD "--steps 9 --power 1", "--power needs --schedule poly; this is constant" },
    { GOOD "--steps 9 --schedule cosine --decay 2",
      "--decay needs --schedule wsd; this is cosine" },
    { GOOD "--steps 9 --schedule wsd --decay 5 --warmup 5",
      "a warmup of 5 steps and a decay of 5 do not fit into 9 steps; shorten one of them" },
    { GOOD "--steps 9 --base-batch 64",
      "--base-batch needs --scale-lr linear or sqrt; this is none" },
    { GOOD "--steps 9 --warmup 2 --warmup-epochs 1", "give --warmup (steps) or --warmup-epochs" },
    { GOOD "--steps 1 --keep 2", "--keep needs --checkpoint DIR" },
    { GOOD "--steps 1 --checkpoint-every 2", "--checkpoint-every needs --checkpoint DIR" },
    { GOOD "--steps 1 --split-seed 2", "--split-seed needs --validation FRACTION" },
    { GOOD "--steps 1 --hidden 512,x", "--hidden 512,x: must be integers with commas" },
    { GOOD "--steps 1 --betas 0.9", "--betas 0.9: must be two numbers" },
    { GOOD "--steps 1 --optimizer adam",
      "--optimizer adam: is none of: sgd, adamw, lars, lamb, lion, adagrad, yogi, onebit-adam, "
      "onebit-lamb; did "
      "you mean adamw" },
    { GOOD "--steps 1 --precision fp16 --loss-scale 1000",
      "--loss-scale 1000: must be a power of two from 2^-24 to 2^32" },
    { GOOD "--steps 1 --precision fp16 --loss-scale apex",
      "--loss-scale apex: must be pytorch, deepspeed, none, or a power of two" },
    { GOOD "--steps 1 --optimizer none", "--optimizer none: updates no parameter, so it trains" },
    { GOOD "--steps 1 --order shuffled", "--order shuffled: is none of: permuted, sequential" },
    { GOOD "--steps 1 --order weighted", "--order weighted: is set by --sample-weights FILE" },
    { GOOD "--steps 1 --order sequential --sample-weights w",
      "--sample-weights draws samples in an order of its own; leave out --order sequential" },
    { GOOD "--steps 1 --augment crop", "--augment crop: must be crop=PIXELS or resized-crop=" },
    { GOOD "--steps 1 --augment resized-crop=1.5", "resized-crop=1.5: must be crop=PIXELS" },
    { GOOD "--steps 1 --augment resized-crop=0.5,crop=2", "there is one of them" },
    { GOOD "--steps 1 --augment flip,flip", "--augment flip,flip: must be crop=PIXELS" },
    { GOOD "--steps 1 --augment crop=4,", "--augment crop=4,: must be crop=PIXELS" },
    { GOOD "--steps 1 --augment crop=300", "--augment crop=300 can move images of" },
    { GOOD "--steps 1 --loss-scale pytorch",
      "--loss-scale-hysteresis are for --precision fp16 and --grad-comm-dtype fp16" },
    { GOOD "--steps 1 --grad-comm-dtype fp64",
      "--grad-comm-dtype fp64: is none of: fp32, bf16, fp16, int8, int4" },
    { GOOD "--steps 1 --grad-comm-dtype fp16 --precision bf16",
      "--grad-comm-dtype fp16 needs a loss scale, which --precision bf16 does not have" },
    { GOOD "--steps 1 --compress zip", "--compress zip: is none of: none, powersgd, topk, " },
    { GOOD "--steps 1 --compress topk --rank 2", "--rank needs --compress powersgd; this is topk" },
    { GOOD "--steps 1 --compress sign --error-feedback dgc", "--error-feedback dgc goes with" },
    { GOOD "--steps 1 --compress topk --ratio-warmup 0.5,2", "--ratio-warmup 0.5,2: must be" },
    { GOOD "--steps 1 --compress sign --ratio-warmup 0.5", "--ratio-warmup needs --compress" },
    { GOOD "--steps 1 --compress topk --ratio-span 5", "--ratio-span needs --ratio-warmup" },
    { GOOD "--steps 1 --optimizer onebit-adam", "onebit-adam needs --freeze-step" },
    { GOOD "--steps 1 --freeze-step 2", "--freeze-step needs --optimizer onebit-adam" },
    { GOOD "--steps 1 --optimizer onebit-adam --freeze-step 0", "must be auto, or a number" },
    { GOOD "--steps 1 --optimizer onebit-lamb", "--optimizer onebit-lamb needs --freeze-step" },
    { GOOD "--steps 1 --optimizer onebit-adam --freeze-step 2 --compress sign",
      "leave out one of the two" },
    { GOOD "--steps 1 --optimizer onebit-adam --freeze-step 2 --clip-value 1", "use --clip-norm" },
    { GOOD "--steps 1 --optimizer onebit-adam --freeze-step 2 --local-steps 2",
      "use --optimizer adamw" },
    { GOOD "--steps 1 --optimizer onebit-adam --freeze-step 2 --strategy zero2",
      "need --strategy ddp or zero1" },
    { GOOD "--steps 1 --compress-start 2", "--compress-start needs --compress" },
    { GOOD "--steps 1 --compress topk --compress-start 0", "--compress-start 0: must be" },
    { GOOD "--steps 1 --compress vote --clip-norm 1", "clip the gradients of groups with "
                                                      "--group-clip-norm" },
    { GOOD "--steps 1 --compress powersgd --error-feedback ef21-sgdm",
      "--error-feedback ef21-sgdm does not go with --compress powersgd" },
    { GOOD "--steps 1 --compress powersgd --error-feedback ef21",
      "--error-feedback ef21 does not go with --compress powersgd" },
    { GOOD "--steps 1 --compress vote --error-feedback ef14",
      "--compress vote has no residuals to keep: use --error-feedback signum or off" },
    { GOOD "--steps 1 --compress topk --error-feedback dgc --feedback-momentum 0",
      "--feedback-momentum 0: must be a number above 0 and below 1" },
    { GOOD "--steps 1 --compress qsgd --bucket 33", "--bucket is 33; give a multiple of 32" },
    { GOOD "--steps 1 --compress topk --feedback-momentum 0.5",
      "--feedback-momentum goes with --error-feedback dgc, signum or ef21-sgdm, and --compress " },
    { GOOD "--steps 1 --feedback-momentum 0.5", "--feedback-momentum needs --compress" },
    { GOOD "--steps 1 --compress topk --error-feedback dgc --error-scale lr",
      "--error-scale goes with --error-feedback ef14, not with dgc" },
    { GOOD "--steps 1 --error-feedback off", "--error-feedback needs --compress" },
    { GOOD "--steps 1 --compress topk --ratio 0", "--ratio 0: must be a number above 0 and up to" },
    { GOOD "--steps 1 --compress powersgd --min-compression-rate 0.5",
      "--min-compression-rate 0.5: must be a number of at least 1" },
    { GOOD "--steps 1 --virtual-workers 8 --groups 3", "--groups 3 cannot divide --virtual-workers "
                                                       "8: all groups must have the same number" },
    { LARGE "--workers 1", "--groups 512: one worker would hold the sums of 512 groups, 256 is the "
                           "limit; use fewer, or more --workers" },
    { LARGE "--workers 2 --on-failure continue",
      "the sums of 512 groups if it survived all others" },
    { GOOD "--steps 1 --compress sign --strategy zero2",
      "groups (--groups 1) need --strategy ddp or zero1" },
    { GOOD "--steps 1 --compress sign --sdc-check 0.5", "leave out --sdc-check" },
    { GOOD "--steps 1 --compress sign --grad-comm-dtype bf16", "leave out --grad-comm-dtype" },
    { GOOD "--steps 1 --compress sign --precision fp16", "do not support a loss scale" },
    { GOOD "--steps 1 --compress sign --speculate on", "are computed once: leave out --speculate" },
    { GOOD "--steps 1 --compress sign --rebalance on", "leave out --rebalance" },
    { GOOD "--steps 1 --compress sign --virtual-workers 8 --noise-scale 0.9", "leave it out" },
    { GOOD "--steps 1 --loss-scale-window 5", "--loss-scale-window and --loss-scale-hysteresis are "
                                              "for --precision fp" },
    { GOOD "--steps 1 --precision fp16 --loss-scale-hysteresis 3",
      "--loss-scale-hysteresis needs --loss-scale deepspeed; this is pytorch" },
    { GOOD "--steps 1 --strategy hybrit", "--strategy hybrit: is none of: ddp, zero1, zero2" },
    { GOOD "--steps 1 --virtual-workers 1 --noise-scale 0.9", "needs --virtual-workers 2 or more" },
    { GOOD "--steps 1 --precision bf8", "--precision bf8: is none of: fp32, bf16, fp16" },
    { GOOD "--steps 1 --kernels mkl", "--kernels mkl: is none of: own, onednn" },
    { GOOD "--steps 1 --workers 1 --hosts 2", "--hosts 2 are more than the 1 workers" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --worker-mode threads",
      "--hosts needs --worker-mode" },
    { GOOD "--steps 1 --nnodes 2", "--nnodes 2 needs --rendezvous tcp://HOST:PORT" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --async virtual --on-failure "
           "continue",
      "asynchronous training (--async) over several hosts ends with the first worker" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --async virtual --speculate on",
      "asynchronous training (--async) over several hosts computes no task twice: leave out "
      "--speculate" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --async live --record r "
           "--consistency shard --delay-compensation 0.04",
      "over several hosts has what a task has read of shards or spans on one host only: leave out "
      "--delay-compensation or --consistency" },
    { GOOD "--steps 1 --virtual-workers 4 --workers 4 --hosts 4 --strategy hybrid --shard-size 3",
      "--shard-size must divide the number of hosts" },
    { GOOD "--steps 1 --virtual-workers 8 --workers 3 --hosts 2 --strategy hybrid --offload "
           "parameters:/tmp", "needs as many workers on every host" },
    { GOOD "--steps 1 --workers 2 --hosts 2 --strategy zero3 --param-comm-dtype int8 --offload "
           "parameters:/tmp", "leave out --param-comm-dtype int8" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --compress topk --optimizer adamw --offload "
           "optimizer:/tmp --on-failure continue", "leave out --offload, or leave out --on-failure "
      "continue, and MIN of --workers MIN:MAX" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --compress topk --strategy zero1 "
           "--shard-replicas 2", "give --on-failure continue, too" },
    { GOOD "--steps 1 --virtual-workers 8 --workers 5 --hosts 4 --strategy hybrid --shard-size 2",
      "--shard-size needs as many workers in the same places of every group of hosts" },
    { GOOD "--steps 1 --strategy fsdp", "--strategy fsdp: is called zero3 or FULL_SHARD here" },
    { GOOD "--steps 1 --offload optimizer:/tmp --offload parameters:/tmp",
      "--offload stands twice: write all in one, --offload WHAT,WHAT:DIR" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2 --nnodes 2",
      "--hosts 2 emulates hosts on this one" },
    { GOOD "--steps 1 --virtual-workers 3 --workers 2:3 --on-failure stop",
      "--on-failure stop ends the run: leave out one of them, or MIN" },
    { GOOD "--steps 1 --virtual-workers 4 --workers 1:2 --worker-mode threads",
      "--workers MIN:MAX means --on-failure continue" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 2:1",
      "--hosts 2:1: MIN:MAX must be integers from 1 to 1024, in order" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 1:2 --on-failure stop",
      "--on-failure stop ends the run: leave out one of them, or MIN" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 1:2 --strategy zero1",
      "--nnodes MIN:MAX (and --hosts) needs --strategy ddp or hybrid" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 2 --hosts 1:2 --compress sign",
      "--nnodes MIN:MAX (and --hosts) is not for compressed gradients" },
    { GOOD "--steps 1 --virtual-workers 4 --workers 4 --hosts 1:4 --strategy hybrid --shard-size "
           "2", "needs a whole group to begin with" },
    { GOOD "--steps 1 --virtual-workers 8 --workers 3 --hosts 1:2",
      "--hosts MIN:MAX needs as many workers on every host" },
    { "run -n 2 --hosts 1:2 true", "here all have to be there from the beginning" },
    { "verify mlp --lr 0.1 --global-batch 8 --steps 3 --step 2 --virtual-worker 0",
      "--data is missing" },
    { "resume", "RUN is missing" },
    { "resume --workers 2", "RUN must be the first argument" },
    { "resume nowhere", "there is no directory 'nowhere'" },
    { "resume /", "'/' has no command.json" },
    { "bench", "OP is missing: step, scaling, or a collective such as all_reduce" },
    { "verify" OF_GOOD "--steps 3 --step 2 --virtual-worker 0 --checkpoint nowhere",
      "cannot find the directory 'nowhere'" },
    { GOOD "--steps 1 --restart", "--restart needs --checkpoint DIR" },
    { GOOD "--steps 1 --resume=soon", "--resume soon: must be auto" },
    { GOOD "--steps 1 --quiet=1", "--quiet takes no value" },
    { GOOD "--steps 1 --seed", "--seed needs a value: --seed N" },
    { GOOD "--steps 1 --validation 1",
      "--validation 1: must be a number of at least 0 and below 1" },
    { GOOD "--steps 1 --config none.toml", "--config none.toml: No such file or directory; cor" },
    { GOOD "--steps 1 --config .", "--config .: Is a directory" },
    { "train 2>/dev/null; mkfifo c.pipe; " LK_TEST_COMMAND " " GOOD "--steps 1 --config c.pipe",
      "--config c.pipe: it is a pipe or a device, and is read more than once; correct the" },
    { "train --config c.toml 2>/dev/null; printf 'batch_size = 4\nnonsense = 1\n' >c.toml; "
      LK_TEST_COMMAND " " GOOD "--steps 1 --config c.toml",
      "c.toml:1: unknown key batch_size; here it is --global-batch N, the samples of a step over "
      "all workers\nlockstep train: c.toml:2: unknown key nonsense; keys are the names of opt" },
    { GOOD "--steps 1 --seed 99999999999999999999",
      "--seed 99999999999999999999: must be an integer from 0 to 18446744073709551615" },
    { GOOD "--steps 1 --lr 1e400", "--lr 1e400: is more than a number can be" },
    { GOOD "--steps 1 --chaos 1,1e300",
      "--chaos 1,1e300: must be SEED,RATE with an integer and a number above 0 and up to 10000" },
    { GOOD "--steps 1 --log -", "--log - names no file" },
    { GOOD "--steps 0 --log no/a --metrics no/b --tensorboard /dev/null --checkpoint no/c",
      "--steps 0: must be an integer of at least 1\nlockstep train: --checkpoint no/c: there is no "
      "directory 'no'; make it first (mkdir -p), or correct the path\nlockstep train: --log no/a: "
      "there is no directory 'no'; make it first (mkdir -p), or correct the path\nlockstep train: "
      "--tensorboard /dev/null: is a file, not a directory; give another path\nlockstep train: "
      "--metrics no/b: there is no directory 'no'" },
    { GOOD "--steps 1 --trace / --flight-recorder no/a",
      "--trace /: is a directory; name a file in it\nlockstep train: --flight-recorder no/a" },
    { "run -np 4 -lr 3", "unknown option -lr; options of the program come after its name" },
    { GOOD "--steps 1 -lr 3", "unknown option -lr; did you mean --lr?" },
    { "train --init nowhere --data nowhere.txt",
      "there is no such file or folder; correct the path\nlockstep train: --init nowhere: No such "
      "file or directory; correct the path, or, if this is a name on the Hugging Face hub, "
      "download its folder first: hf download nowhere --local-dir nowhere\n(" },
    { "train gpt --init a/b --data err", "--init a/b: No such file or directory; correct the path, "
                                         "or, if this is a name on the Hugging Face hub" },
    { "train gpt --init b --data out; mkdir -p b; touch b/manifest.json; " LK_TEST_COMMAND
      " train gpt --init b --data out",
      "--init b: is a checkpoint of a run; to continue the run, use lockstep resume .; to start "
      "another run with its weights, give b/model.safetensors, and MODEL, or the folder that" },
    { "train gpt --init a.jsonl --data err; echo '{\"step\": 0}' >a.jsonl; " LK_TEST_COMMAND
      " train gpt --init a.jsonl --data err",
      "--init a.jsonl: is JSON, such as the log of a run; weights are read from .safetensors" },
    { "train gpt --init https://hf.co/gpt2 --data err",
      "--init https://hf.co/gpt2: nothing is downloaded; download the folder first" },
    { GOOD "--steps 1 --data out", "--data stands twice: give one file, or a folder" },
    { "eval b --data out --data err", "--data stands twice: give one file, or a folder" },
    { "train gpt --data https://hf.co/book.txt",
      "--data https://hf.co/book.txt: nothing is downloaded: download it first" },
    { "train GPT --data out", "gpt, llama, resnet and mlp, did you mean gpt?" },
    { "train Llama --data out", "gpt, llama, resnet and mlp, did you mean llama?" },
    { "train gpt --data r; mkdir -p r; touch r/command.json; " LK_TEST_COMMAND " eval r --data r",
      "--data r: is the directory of a run, not data; give data, such as those of the run" },
    { "eval a/b --data out", "cannot find 'a/b': No such file or directory; if this is a name on "
                             "the Hugging Face hub, download its folder first: hf download a/b" },
    { "plan --init nowhere", "lockstep plan: --init nowhere: No such file or directory" },
    { "eval . --data nowhere.txt", "--data nowhere.txt: there is no such file or folder" },
    { "verify", "RUN or FILE is missing: give the --checkpoint directory of a run and a step" },
    { "verify --step 3 out", "RUN or FILE must be the first argument, before --step: lockstep "
                             "verify out ..." },
    { "verify /tmp/ --segments 3", "--segments goes with a statement, and /tmp is a run: lockstep "
                                   "attest /tmp writes one, and lockstep verify /tmp.attest.json" },
    { "verify nothing --step 1", "(lockstep verify --help lists its options, and lockstep train "
                                 "--help=all those that it shares)\n" },
    { "resume d 2>/dev/null; mkdir d; echo {} >d/command.json; " LK_TEST_COMMAND " resume d",
      "'d/command.json' has no \"options\" of a run; give them as before: lockstep train MODEL" },
    { "resume d 2>/dev/null; echo x >d/command.json; " LK_TEST_COMMAND " resume d",
      "'d/command.json' line 1: " },
    { "run -n 0 ./program", "-n 0: must be an integer from 1 to" },
    { "run -n 1 --nnodes 2 --insecure --rendezvous tcp://h ./program", "is no rendezvous" },
    { "run -n 1 --nnodes 2 --insecure --rendezvous tcp://[fe80::1]:29400 ./program",
      "a link-local address needs this host's interface" },
    { "run", "-n N is missing: number of copies of the program to start" },
    { "verify nothing --step 1", "nothing is no directory of a run, no statement, and no model" },
    { "verify a.jsonl --step 1 2>/dev/null; echo '{\"step\": 0}' >a.jsonl; " LK_TEST_COMMAND
      " verify a.jsonl --step 1",
      "a.jsonl is the log of a run: give the run's --checkpoint directory and a step" },
    { "verify out --step 1", "out is a file, and --step goes with the --checkpoint directory of" },
    { "resume b 2>/dev/null; mkdir -p b; touch b/manifest.json; " LK_TEST_COMMAND
      " resume b",
      "'b' is a checkpoint of a run; give the directory above it" },
    { GOOD "--steps 1 --virtual-workers 2 --workers 3 --checkpoint refused; "
           "test -e refused || exit 2", "--workers 3 are more than the 2 virtual workers" },
    { "run -n 1 cli/train.py 2>/dev/null; echo >a.py; " LK_TEST_COMMAND " run -np 1 a.py",
      "write python before it, as in -- python a.py" },
    { "run ./program", "-n N is missing: number of copies of the program to start" },
    { "sample", "RUN is missing" },
    { "sample x --tokens 0", "--tokens 0: must be an integer from 1 to" },
    { "sample x --temperature -1", "--temperature -1: must be a number of at least 0" },
};

static void each_mistake_has_its_error(void **state)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        static command_result r;
        run_command(&r, *state, mistakes[i].arguments);
        if (r.status != 2 || r.out[0] != '\0' || strncmp(r.err, "lockstep", 8) != 0)
            fail_msg("lockstep %s: status %d, stdout '%s', stderr '%s'", mistakes[i].arguments,
                     r.status, r.out, r.err);
        assert_says(r.err, mistakes[i].message);
        assert_says_not(r.err, "(pid");
    }
}

/* Checks that errors about the config file name its lines, even if options exclude each other. */
static void mistakes_of_a_file_name_its_lines(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "printf 'micro-batch = 5\\nworkers = 1\\nhosts = 2\\n' >a.toml; "
                                LK_TEST_COMMAND " " GOOD "--steps 1 --config a.toml");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--global-batch 8 cannot be divided by a.toml:1: micro-batch 5");
    (void)run_shell(&r, *state,
                    LK_TEST_COMMAND " " GOOD "--steps 1 --config a.toml --micro-batch 4");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "a.toml:3: hosts 2 are more than the 1 workers; raise a.toml:2: workers");
    (void)run_shell(&r, *state, "printf 'audit = 0.5\\nsdc-check = 1\\n' >b.toml; " LK_TEST_COMMAND
                                " " GOOD "--steps 1 --config b.toml");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "b.toml:2: sdc-check is the same option as audit on line 1");
}

static void a_closed_input_or_output_is_no_success(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        char line[512];
        (void)snprintf(line, sizeof line,
                       LK_TEST_COMMAND " train mlp --data 'stream:-?h=2&w=2&classes=2' --lr 1 "
                                       "--global-batch 8 --steps 1 --worker-mode %s <&-", modes[i]);
        (void)run_shell(&r, *state, line);
        assert_int_equal(r.status, 1);
        assert_says(r.err, "standard input is closed, which 'stream:-?h=2&w=2&classes=2' is to");
    }
    (void)run_shell(&r, *state, LK_TEST_COMMAND " " GOOD "--steps 1 >&-");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "standard output is closed");
}

/* The log, or another file, would be descriptor 2, and get the lines for the terminal. */
static void no_file_gets_what_is_for_a_closed_stream(void **state)
{
    static const char *const closed[] = { "2>&-", "<&- 2>&-" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        char line[512];
        (void)snprintf(line, sizeof line,
                       "rm -rf ck run.jsonl; " LK_TEST_COMMAND " " GOOD "--steps 4 --checkpoint ck "
                       "--log run.jsonl --worker-mode threads %s && "
                       "! grep -v '^{.*}$' run.jsonl && " LK_TEST_COMMAND " inspect ck >all",
                       closed[i]);
        (void)run_shell(&r, *state, line);
        if (r.status != 0)
            fail_msg("%s: status %d: %s%s", closed[i], r.status, r.out, r.err);
    }
    (void)run_shell(&r, *state, LK_TEST_COMMAND " inspect ck >&-");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "writing to standard output");
}

static void a_full_output_is_no_success(void **state)
{
    static const char *const lines[] = { "--help >/dev/full", "version >/dev/full" };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        static command_result r;
        run_command(&r, *state, lines[i]);
        if (r.status != 1)
            fail_msg("lockstep %s: status %d", lines[i], r.status);
        assert_string_equal(r.err,
                            "lockstep: writing to standard output: No space left on device\n");
    }
}

static void a_missing_file_is_no_usage_error(void **state)
{
    static const struct {
        const char *arguments, *message;
    } cases[] = {
        { "train mlp --data idx:a,b --global-batch 8 --steps 1 --lr 1", "'a'" },
        { "train gpt --data text:none --global-batch 8 --steps 1 --lr 1", "'none'" },
        { GOOD "--steps 1 --log /proc/log", "'/proc/log': No such file or directory; give an" },
        { GOOD "--steps 1 --checkpoint /proc/here", "/proc/here" },
        { GOOD "--steps 1 --init none.safetensors", "none.safetensors" },
        { "sample none", "(give the --checkpoint directory of a run, a folder as transformers "
                         "writes it, or a .safetensors file)" },
        { "sample none", "(if this is a name on the Hugging Face hub, download its folder first" },
        { "export none --out x", "(give the --checkpoint directory of a run, or a folder as "
                                 "transformers writes it)" },
        { "sample .", "there is no checkpoint in '.'\n(give the --checkpoint directory of a run" },
        { "inspect none/manifest.json", "none/manifest.json" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static command_result r;
        run_command(&r, *state, cases[i].arguments);
        if (r.status != 1 || r.out[0] != '\0')
            fail_msg("lockstep %s: status %d, '%s'", cases[i].arguments, r.status, r.err);
        assert_says(r.err, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_overview_shows_commands_and_examples),
        cmocka_unit_test(every_command_has_help_and_a_man_page),
        cmocka_unit_test(each_mistake_has_its_error),
        cmocka_unit_test(mistakes_of_a_file_name_its_lines),
        cmocka_unit_test(a_closed_input_or_output_is_no_success),
        cmocka_unit_test(no_file_gets_what_is_for_a_closed_stream),
        cmocka_unit_test(a_full_output_is_no_success),
        cmocka_unit_test(a_missing_file_is_no_usage_error),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
