//! The keys of `[model]`, `[tables]` and `[train]` with a job for each, and what becomes of the job
//! on a GPU.

use Outcome::{Equal, GpuAlone, OnHost, Refused};

/// The outcome of a job on a GPU.
pub(super) enum Outcome {
    /// The checkpoint has the bytes of a run on processors, and the rows are on the GPU.
    Equal,
    /// The checkpoint has the bytes of a run on processors, and the rows stay on the host, because
    /// of a reason with these words.
    OnHost(&'static str),
    /// The run does not begin on a GPU, and the error contains these words.
    Refused(&'static str),
    /// A GPU alone trains the job, with the same checkpoint in each run. The run does not begin on
    /// processors, and the error contains these words.
    GpuAlone(&'static str),
}

/// A job that sets some keys.
pub(super) struct Case {
    /// The keys that the job covers, separated by spaces.
    pub(super) keys: &'static str,
    /// The settings, which are laid over those of the usual job.
    pub(super) settings: &'static str,
    pub(super) outcome: Outcome,
}

const fn case(keys: &'static str, settings: &'static str, outcome: Outcome) -> Case {
    Case { keys, settings, outcome }
}

/// The jobs for the keys of `[train]`.
pub(super) const TRAIN: &[Case] = &[
    case(
        "epochs batch_size drop_last",
        "train = { epochs = 2, batch_size = 16, drop_last = true }",
        Equal,
    ),
    case("optimizer", "train.optimizer = { kind = 'sgd', lr = 0.1, momentum = 0.5 }", Equal),
    case("optimizer", "train.optimizer = { kind = 'adagrad', lr = 0.1 }", Equal),
    case("optimizer", "train.optimizer = { kind = 'momentum', lr = 0.1, nesterov = true }", Equal),
    case("optimizer", "train.optimizer = { kind = 'adamw', lr = 0.01 }", Equal),
    case("optimizer", "train.optimizer = { kind = 'lamb', lr = 0.01, weight_decay = 0.1 }", Equal),
    case("optimizer", "train.optimizer = { kind = 'ftrl', lr = 0.1, l1 = 0.001 }", Equal),
    case("clip_norm", "train.clip_norm = 0.05", Equal),
    case("max_table_bytes", "train.max_table_bytes = '64 MiB'", Equal),
    case("plateau", "train = { epochs = 3, plateau = { factor = 0.5, patience = 1 } }", Equal),
    case(
        "schedule",
        "train.schedule = { warmup_steps = 2, decay = { kind = 'cosine', steps = 4 } }",
        Equal,
    ),
    case(
        "mode staleness",
        "train = { mode = 'hybrid', staleness = 2 }\n{ps}",
        Refused("`train.mode` is \"hybrid\""),
    ),
    case(
        "mode on_server_loss",
        "train = { mode = 'async', on_server_loss = 'continue' }\n{ps}",
        Refused("`train.mode` is \"async\""),
    ),
    case(
        "mode local_steps",
        "train = { mode = 'geo', local_steps = 3 }\ntables.'*'.optimizer = { kind = 'sgd', lr = 0.1 }\n{ps}",
        Refused("`train.mode` is \"geo\""),
    ),
    case("wire", "train.wire = 'bf16'", OnHost("`train.wire`")),
    case("precision", "train.precision = 'f32'", Equal),
    case("precision", "train.precision = 'tf32'", GpuAlone("`train.precision`: is \"tf32\"")),
    case("precision", "train.precision = 'bf16'", GpuAlone("`train.precision`: is \"bf16\"")),
    case(
        "fake_quantize",
        "train.fake_quantize = 'int8'\nmodel.hidden = [32, 16]",
        Refused("`train.fake_quantize`"),
    ),
    case(
        "accumulate",
        "train = { accumulate = 3, batch_size = 16, clip_norm = 1.0 }",
        OnHost("`train.accumulate`"),
    ),
    case("average", "train.average = { kind = 'ema', decay = 0.9 }", OnHost("`train.average`")),
    case("prune", "train.prune = { share = 0.5, until = 4, every = 2 }", OnHost("`train.prune`")),
    case("average", "train.average = { kind = 'swa', every = 2 }", OnHost("`train.average`")),
    case("freeze", "train.freeze = ['mlp.0.*']", Equal),
    case("freeze_tables", "train.freeze_tables = ['user']", Equal),
    case("rates", "train.rates = [{ match = 'mlp.*', scale = 0.5 }]", Equal),
    case(
        "item_counts",
        "train.item_counts = 'table'\n[model]\nkind = 'two_tower'\nuser = ['user', 'recent', 'price']\nitem = ['item']\n\
        [features.recent]\ntable = 'recent'",
        Equal,
    ),
    case("warm_start", "train.warm_start = { registry = '{registry}', model = 'm' }", Equal),
    case("loss", "train.loss.click = { kind = 'focal', alpha = 0.3 }", Equal),
    case(
        "loss",
        "train.loss.'*' = { kind = 'bce', positive_weight = 2.0, negative_weight = 0.5 }",
        Equal,
    ),
    case("loss", "train.loss.click = { kind = 'mse' }\n[labels.click]\nkind = 'number'", Equal),
    case(
        "loss",
        "train.loss.click = { kind = 'huber', delta = 0.3 }\n[labels.click]\nkind = 'number'",
        Equal,
    ),
    case("loss", "train.loss.click = { kind = 'poisson' }\n[labels.click]\nkind = 'count'", Equal),
    case(
        "loss",
        "train.loss.click = { kind = 'softmax' }\n[labels.click]\nclasses = [0, 1]\nkind = 'class'",
        Equal,
    ),
    case(
        "loss",
        "train.loss.click = { kind = 'pairwise' }\n[columns]\ngroup = 'user'",
        Refused("`train.loss` compares the rows of groups"),
    ),
    case(
        "loss",
        "train.loss.click = { kind = 'listwise' }\n[columns]\ngroup = 'user'",
        Refused("`train.loss` compares the rows of groups"),
    ),
    case("output_bias", "train.output_bias = 'zero'", Equal),
    case("lanes tile_rows", "train = { lanes = 3, tile_rows = 5 }", Equal),
    case("passes_off", "train.passes_off = ['all']", Equal),
    case(
        "checkpoint_every full_every keep",
        "train = { checkpoint_every = 2, full_every = 3, keep = 1 }",
        Equal,
    ),
];

/// The jobs for the keys of a table.
pub(super) const TABLES: &[Case] = &[
    case("dim", "tables.'*'.dim = 7", Equal),
    case("dtype", "tables.'*'.dtype = 'bf16'", Equal),
    case("dtype", "tables.'*'.dtype = 'f16'", Equal),
    case(
        "initializer",
        "tables.user.initializer = { kind = 'uniform', low = -0.1, high = 0.1 }",
        Equal,
    ),
    case("optimizer", "tables.'*'.optimizer = { kind = 'sgd', lr = 0.1 }", Equal),
    case("optimizer", "tables.'*'.optimizer = { kind = 'momentum', lr = 0.1 }", Equal),
    case("optimizer", "tables.'*'.optimizer = { kind = 'rowwise_adagrad', lr = 0.1 }", Equal),
    case("optimizer", "tables.'*'.optimizer = { kind = 'adam', lr = 0.01 }", Equal),
    case("optimizer", "tables.'*'.optimizer = { kind = 'ftrl', lr = 0.1, l21 = 0.001 }", Equal),
    case("l2 l2_scope", "tables.user = { l2 = 0.01, l2_scope = 'touched' }", Equal),
    case(
        "clip bounds",
        "tables.user = { clip = { norm = 0.01, value = 0.005 }, bounds = [-0.02, 0.02] }",
        Equal,
    ),
    case(
        "dense max_rows unknown",
        "tables.user = { dense = true, max_rows = 50, unknown = 'zero', l2 = 0.01 }",
        Equal,
    ),
    case("admission", "tables.user.admission = { kind = 'count', at_least = 3 }", Equal),
    case(
        "admission",
        "tables.user.admission = { kind = 'bloom', at_least = 2, keys = 1000, error = 0.01 }",
        Equal,
    ),
    case("admission", "tables.user.admission = { kind = 'probability', p = 0.3 }", Equal),
    case(
        "admission_window eviction",
        "tables.user = { admission = { kind = 'count', at_least = 2 }, admission_window = '1 day', \
        eviction = { kind = 'unseen_for', span = '1 day' } }",
        Equal,
    ),
    case(
        "eviction",
        "tables.user.eviction = { kind = 'lfu', half_life = 2, below = 0.6, every = 2 }",
        Equal,
    ),
    case("eviction", "tables.'*'.eviction = { kind = 'unseen', steps = 2 }", Equal),
    case(
        "eviction max_rows",
        "tables.user = { eviction = { kind = 'lfu', half_life = 3 }, max_rows = 9 }",
        Equal,
    ),
    case(
        "eviction max_rows",
        "tables.user = { eviction = { kind = 'l2' }, max_rows = 9 }",
        OnHost("`tables.user.eviction`"),
    ),
    case(
        "eviction",
        "tables.user.eviction = { kind = 'l2', below = 0.02, every = 2 }",
        OnHost("`tables.user.eviction`"),
    ),
    case("max_rows", "tables.user.max_rows = 9", Equal),
    case(
        "pinned pinned_file",
        "tables.user = { eviction = { kind = 'lru' }, max_rows = 9, pinned = [1, 2], pinned_file = 'pinned.txt' }",
        Equal,
    ),
    case("statistics", "tables.user.statistics = { decay = 0.9, every_steps = 2 }", Equal),
    case("grow", "tables.user.grow = { at = 3, from = 1 }", OnHost("`tables.user.grow`")),
    case("max_bytes", "tables.user.max_bytes = '64 MiB'", Equal),
    case(
        "linear",
        "tables.user.linear = { optimizer = { kind = 'ftrl', lr = 0.1, l1 = 0.001 }, l2 = 0.1 }",
        Equal,
    ),
];

/// Two labels, for the kinds that need them.
macro_rules! two {
    ($model:literal) => {
        concat!("labels.buy.column = 'buy'\n[model]\n", $model)
    };
}

/// The jobs for the keys of each kind of model.
pub(super) const MODELS: &[(&str, &[Case])] = &[
    ("lr", &[case("bias l2", "model = { kind = 'lr', bias = false, l2 = 0.01 }", Equal)]),
    ("fm", &[case("bias l2", "model = { kind = 'fm', bias = true, l2 = 0.01 }", Equal)]),
    (
        "dnn",
        &[
            case(
                "hidden activation batch_norm dropout l2",
                "model = { kind = 'dnn', hidden = [6, 5], activation = 'gelu', batch_norm = true, dropout = 0.3, l2 = 0.01 }",
                Equal,
            ),
            case(
                "activation",
                "model = { kind = 'dnn', hidden = [6], activation = 'dice' }",
                Equal,
            ),
            case(
                "activation",
                "model = { kind = 'dnn', hidden = [6], activation = 'prelu' }",
                Equal,
            ),
        ],
    ),
    (
        "wide_deep",
        &[case(
            "hidden activation batch_norm dropout l2 bias",
            "model = { kind = 'wide_deep', hidden = [6], activation = 'sigmoid', batch_norm = true, dropout = 0.3, l2 = 0.01, bias = true }",
            Equal,
        )],
    ),
    (
        "deepfm",
        &[case(
            "hidden activation batch_norm dropout l2 bias",
            "model = { kind = 'deepfm', hidden = [6, 5], activation = 'tanh', batch_norm = true, dropout = 0.3, l2 = 0.01, bias = true }",
            Equal,
        )],
    ),
    (
        "dcn",
        &[case(
            "hidden activation batch_norm dropout l2 cross_layers structure",
            "model = { kind = 'dcn', hidden = [6], activation = 'silu', batch_norm = true, dropout = 0.3, l2 = 0.01, cross_layers = 2, structure = 'stacked' }",
            Equal,
        )],
    ),
    (
        "dcnv2",
        &[case(
            "hidden activation batch_norm dropout l2 cross_layers structure low_rank",
            "model = { kind = 'dcnv2', hidden = [6], activation = 'leaky_relu', batch_norm = true, dropout = 0.3, l2 = 0.01, \
         cross_layers = 2, structure = 'parallel', low_rank = 3 }",
            Equal,
        )],
    ),
    (
        "dlrm",
        &[
            case(
                "hidden activation batch_norm dropout l2 interaction bottom bottom_dropout",
                "model = { kind = 'dlrm', hidden = [6], activation = 'relu', batch_norm = true, dropout = 0.3, l2 = 0.01, \
             interaction = 'dot', bottom = [5, 4], bottom_dropout = 0.2 }",
                Equal,
            ),
            case(
                "interaction",
                "model = { kind = 'dlrm', hidden = [6], interaction = 'cat', bottom = [4] }",
                Equal,
            ),
        ],
    ),
    (
        "din",
        &[case(
            "hidden activation batch_norm dropout l2 attention attention_hidden attention_activation softmax wide fm",
            "model = { kind = 'din', hidden = [6], activation = 'relu', batch_norm = true, dropout = 0.3, l2 = 0.01, \
         attention = [{ query = 'item', history = 'recent' }], attention_hidden = [5], attention_activation = 'sigmoid', \
         softmax = true, wide = true, fm = true }",
            Equal,
        )],
    ),
    (
        "shared_bottom",
        &[case(
            "activation batch_norm dropout l2 bottom tower",
            two!(
                "kind = 'shared_bottom'\nactivation = 'relu'\nbatch_norm = true\ndropout = 0.3\nl2 = 0.01\nbottom = [6]\ntower = [5]"
            ),
            Equal,
        )],
    ),
    (
        "mmoe",
        &[case(
            "activation batch_norm dropout l2 experts expert tower",
            two!(
                "kind = 'mmoe'\nactivation = 'relu'\nbatch_norm = true\ndropout = 0.3\nl2 = 0.01\nexperts = 3\nexpert = [6]\ntower = [5]"
            ),
            Equal,
        )],
    ),
    (
        "esmm",
        &[case(
            "hidden activation batch_norm dropout l2",
            two!(
                "kind = 'esmm'\nhidden = [6]\nactivation = 'relu'\nbatch_norm = true\ndropout = 0.3\nl2 = 0.01"
            ),
            Equal,
        )],
    ),
    (
        "two_tower",
        &[case(
            "hidden activation batch_norm dropout l2 user item item_id dim temperature normalise sampling_correction",
            "[model]\nkind = 'two_tower'\nuser = ['user', 'recent', 'price']\nitem = ['item']\nitem_id = 'item'\nhidden = [6]\n\
         activation = 'relu'\nbatch_norm = true\ndropout = 0.3\nl2 = 0.01\ndim = 5\ntemperature = 0.2\nnormalise = true\n\
         sampling_correction = false",
            Equal,
        )],
    ),
    (
        "graph",
        &[
            case(
                "logits nodes l2",
                "[model]\nkind = 'graph'\nlogits = 'score'\nl2 = 0.01\n\
             [model.nodes.fields]\nop = 'embedding'\n\
             [model.nodes.crossed]\nop = 'cross_v2'\ninputs = ['fields']\nlayers = 2\n\
             [model.nodes.normed]\nop = 'layer_norm'\ninputs = ['crossed']\n\
             [model.nodes.hidden]\nop = 'mlp'\ninputs = ['normed']\nhidden = [6]\n\
             [model.nodes.squared]\nop = 'square'\ninputs = ['hidden']\n\
             [model.nodes.score]\nop = 'linear'\ninputs = ['squared']\nwidth = 1",
                Equal,
            ),
            case(
                "outputs nodes",
                two!(
                    "kind = 'graph'\noutputs = { click = 'a', buy = 'b' }\n\
             [model.nodes.fields]\nop = 'embedding'\n\
             [model.nodes.values]\nop = 'values'\nfeature = 'recent'\n\
             [model.nodes.weights]\nop = 'linear'\ninputs = ['values']\nwidth = 1\n\
             [model.nodes.shares]\nop = 'segment_softmax'\ninputs = ['weights']\n\
             [model.nodes.weighed]\nop = 'mul'\ninputs = ['values', 'shares']\n\
             [model.nodes.list]\nop = 'segment_sum'\ninputs = ['weighed']\n\
             [model.nodes.all]\nop = 'concat'\ninputs = ['fields', 'list']\n\
             [model.nodes.a]\nop = 'linear'\ninputs = ['all']\nwidth = 1\n\
             [model.nodes.b]\nop = 'linear'\ninputs = ['list']\nwidth = 1"
                ),
                Equal,
            ),
        ],
    ),
];
