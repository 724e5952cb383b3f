"""The panels of the dashboards, one line for each series, so that a person can review them. make.py writes them for Grafana."""

# Units as Grafana calls them.
SECONDS, BYTES, SHARE, COUNT, RATE, DATE = "s", "bytes", "percentunit", "short", "ops", "dateTimeFromNow"

I = 'instance=~"$instance"'
M = I + ', model=~"$model"'
R = "[$__rate_interval]"


def panel(title, unit, about, *series, kind="timeseries"):
    """Returns a panel. `series`: pairs of an expression and the name of its lines."""
    return {"title": title, "unit": unit, "about": about, "series": series, "kind": kind}


def stat(title, unit, about, *series):
    return panel(title, unit, about, *series, kind="stat")


def quantiles(metric, by, labels):
    """Returns the median, the 90th and the 99th percentile of a histogram."""
    grouped = ", ".join(["le", *by])
    name = " ".join("{{%s}}" % label for label in by)
    return [
        (f"histogram_quantile({q}, sum by ({grouped}) (rate({metric}_bucket{{{labels}}}{R})))", f"{name} p{int(100 * q)}".strip())
        for q in (0.5, 0.9, 0.99)
    ]


def mean(metric, by, labels):
    name = " ".join("{{%s}}" % label for label in by)
    of = f"sum by ({', '.join(by)}) (rate({metric}_%s{{{labels}}}{R}))" if by else f"sum(rate({metric}_%s{{{labels}}}{R}))"
    return (f"{of % 'sum'} / {of % 'count'}", f"{name} mean".strip())


TRAINING = [
    ("Progress", [
        stat("Step", COUNT, "Steps done since the run first began.", (f"zillion_trainer_step{{{I}}}", "step")),
        stat("Epochs", COUNT, "Epochs completed, and the most epochs of the job.",
             (f"zillion_trainer_epoch{{{I}}}", "done"), (f"zillion_trainer_epochs{{{I}}}", "of")),
        stat("Program", COUNT, "Version of the program, and the time since its start.",
             (f'zillion_build_info{{{I}, role="trainer"}}', "{{version}} {{arch}}"),
             (f"time() - process_start_time_seconds{{{I}}}", "seconds up")),
        panel("Samples a second", RATE, "Rows trained; validation and checkpoints lower it.",
              (f"rate(zillion_trainer_samples_total{{{I}}}{R})", "{{instance}}"),
              ("zillion:trainer_samples:rate5m", "{{instance}} over 5 minutes")),
        panel("Loss", COUNT, "Mean loss of the rows trained most recently, each measured before it was learned from.",
              (f"zillion_trainer_loss{{{I}}}", "{{instance}}")),
        panel("AUC while training", COUNT, "AUC of the most recent predictions, each made before its batch was learned from.",
              (f"zillion_trainer_recent_auc{{{I}}}", "{{task}}")),
    ]),
    ("Validation", [
        panel("Metrics", COUNT, "AUC, log loss, calibration and the other metrics of the job.",
              (f'zillion_trainer_validation{{{I}, metric!~"rows|positives"}}', "{{task}} {{metric}}")),
        panel("Rows scored", COUNT, "Rows with the task's label, and those labelled 1.",
              (f'zillion_trainer_validation{{{I}, metric=~"rows|positives"}}', "{{task}} {{metric}}")),
        stat("Last validation", SECONDS, "Time since the last validation.",
             (f"time() - zillion_trainer_validation_timestamp_seconds{{{I}}} > 0", "ago")),
        panel("Learning rate", COUNT, "Factor of the schedule.", (f"zillion_trainer_rate_scale{{{I}}}", "{{instance}}")),
        panel("Keys without a row in validation", RATE, "Keys that read their table's default.",
              (f"rate(zillion_trainer_validation_missing_keys_total{{{I}}}{R})", "{{instance}}")),
    ]),
    ("Where the time goes", [
        panel("Share of each stage", SHARE, "wait: reading is too slow. decode_and_plan runs beside the others.",
              ("zillion:trainer_stage:share5m", "{{stage}}")),
        panel("Seconds a second by stage", SHARE, "The same without smoothing.",
              (f"rate(zillion_trainer_stage_seconds_total{{{I}}}{R})", "{{stage}}")),
        panel("Time of a step", SECONDS, "Time of a step without the wait for its rows.",
              *quantiles("zillion_trainer_step_seconds", [], I), mean("zillion_trainer_step_seconds", [], I)),
        panel("Skipped steps", RATE, "Steps that moved no weight, because the gradient's norm was not finite.",
              (f"rate(zillion_trainer_skipped_steps_total{{{I}}}{R})", "{{instance}}")),
        panel("Rewinds", COUNT, "Continuations from the newest checkpoint after the loss of a server or a trainer, and steps done again.",
              (f"zillion_trainer_rewinds_total{{{I}}}", "rewinds"),
              (f"zillion_trainer_repeated_steps_total{{{I}}}", "steps repeated"),
              (f"zillion_trainer_lost_pushes_total{{{I}}}", "pushes lost")),
    ]),
    ("Reader", [
        panel("Rows", RATE, "Rows read, and rows not drawn by data.sample and data.negatives.",
              (f"rate(zillion_reader_rows_total{{{I}}}{R})", "rows"),
              (f"rate(zillion_reader_rows_not_drawn_total{{{I}}}{R})", "not drawn")),
        panel("Bytes", "Bps", "Bytes decoded, by data set.", (f"rate(zillion_reader_bytes_total{{{I}}}{R})", "{{data}}")),
        panel("Bad rows", RATE, "Rows left out as bad, by data set and reason.",
              (f"rate(zillion_reader_bad_rows_total{{{I}}}{R})", "{{data}} {{reason}}")),
        panel("Rows without a row in a side table", RATE, "The features of that table are missing in these rows.",
              (f"rate(zillion_trainer_missing_side_rows_total{{{I}}}{R})", "{{side}}")),
    ]),
    ("Process", [
        panel("Memory", BYTES, "Resident and virtual; mapped files are in both.",
              (f"process_resident_memory_bytes{{{I}}}", "resident"), (f"process_virtual_memory_bytes{{{I}}}", "virtual"),
              (f"zillion_memory_reserve_bytes{{{I}}}", "ready for tables")),
        panel("Processors", COUNT, "Busy processors, and threads.",
              (f"rate(process_cpu_seconds_total{{{I}}}{R})", "busy"), (f"process_threads{{{I}}}", "threads")),
        panel("File descriptors", COUNT, "Open file descriptors, and their limit.",
              (f"process_open_fds{{{I}}}", "open"), (f"process_max_fds{{{I}}}", "limit")),
    ]),
]

TABLES = [
    ("Size", [
        panel("Rows", COUNT, "Rows of each table of the trainer.", (f"zillion_embedding_rows{{{I}}}", "{{table}}")),
        panel("Memory by kind", BYTES, "slack: reserved and not in a row.",
              (f"sum by (kind) (zillion_embedding_bytes{{{I}}})", "{{kind}}")),
        panel("Memory of each table", BYTES, "All kinds together.", (f"sum by (table) (zillion_embedding_bytes{{{I}}})", "{{table}}")),
        panel("Rows in memory and on disk", COUNT, "Tables whose rows are partly on disk (run.spill).",
              (f"zillion_embedding_hot_rows{{{I}}}", "{{table}} memory"),
              (f"zillion_embedding_cold_rows{{{I}}}", "{{table}} disk")),
        panel("Rows to and from disk", RATE, "in: read because a batch needed them. ahead: read before the batch was looked up. out: written because memory was needed. compacted: written again to use the space between them.",
              (f"rate(zillion_embedding_brought_in_rows_total{{{I}}}{R})", "{{table}} in"),
              (f"rate(zillion_embedding_read_ahead_rows_total{{{I}}}{R})", "{{table}} ahead"),
              (f"rate(zillion_embedding_spilled_rows_total{{{I}}}{R})", "{{table}} out"),
              (f"rate(zillion_embedding_compacted_rows_total{{{I}}}{R})", "{{table}} compacted")),
        panel("Disk operations of tables", RATE, "Reads and writes of spilled rows.",
              (f"rate(zillion_embedding_spill_reads_total{{{I}}}{R})", "{{table}} reads"),
              (f"rate(zillion_embedding_spill_writes_total{{{I}}}{R})", "{{table}} writes")),
        panel("Disk bytes of tables", BYTES, "Bytes read and written a second; the size of the files; the limit of memory for rows.",
              (f"rate(zillion_embedding_spill_read_bytes_total{{{I}}}{R})", "{{table}} read a second"),
              (f"rate(zillion_embedding_spill_written_bytes_total{{{I}}}{R})", "{{table}} written a second"),
              (f"zillion_embedding_spill_file_bytes{{{I}}}", "{{table}} files"),
              (f"zillion_embedding_spill_memory_bytes{{{I}}}", "{{table}} memory for rows")),
        panel("Files in the page cache", COUNT, "Files of spilled rows whose file system has no way past its page cache or keeps files in memory: above 0, they take the machine's memory.",
              (f"zillion_embedding_spill_cached_files{{{I}}}", "{{table}}")),
        panel("Bytes a row", BYTES, "All memory of a table, divided by its rows.",
              ("zillion:embedding_bytes_per_row", "{{table}}")),
        panel("Narrow rows", COUNT, "Rows that do not have all of their floats yet; the others are full.",
              (f"zillion_embedding_narrow_rows{{{I}}}", "{{table}}")),
        panel("Keys that wait for admission", COUNT, "Keys with a count and no row.",
              (f"zillion_embedding_candidates{{{I}}}", "{{table}}")),
    ]),
    ("Life of a key", [
        panel("Rows made", RATE, "Rows made by pushes and vocabularies. admitted: rows of keys that had to wait.",
              (f"rate(zillion_embedding_created_rows_total{{{I}}}{R})", "{{table}} made"),
              (f"rate(zillion_embedding_admitted_rows_total{{{I}}}{R})", "{{table}} admitted")),
        panel("Rows that became full", RATE, "Narrow rows that were pushed often enough.",
              (f"rate(zillion_embedding_grown_rows_total{{{I}}}{R})", "{{table}}")),
        panel("Rows evicted", RATE, "evicted: on schedule or at the limit. displaced: at the limit. lapsed: keys forgotten before they were admitted.",
              (f"rate(zillion_embedding_evicted_rows_total{{{I}}}{R})", "{{table}} evicted"),
              (f"rate(zillion_embedding_displaced_rows_total{{{I}}}{R})", "{{table}} displaced"),
              (f"rate(zillion_embedding_lapsed_keys_total{{{I}}}{R})", "{{table}} lapsed")),
        panel("Lookups", RATE, "Unique keys of batches that were looked up.", (f"rate(zillion_embedding_pulled_keys_total{{{I}}}{R})", "{{table}}")),
        panel("Share of keys without a row", SHARE, "Share of looked-up keys that read as their initial row.",
              (f"rate(zillion_embedding_missing_keys_total{{{I}}}{R}) / rate(zillion_embedding_pulled_keys_total{{{I}}}{R})", "{{table}}")),
    ]),
    ("Gradients", [
        panel("Applied", RATE, "Row gradients that were applied or staged.",
              (f"rate(zillion_embedding_pushed_gradients_total{{{I}}}{R})", "{{table}}")),
        panel("Dropped", RATE, "waiting: the key is not admitted yet. refused: a fixed vocabulary does not have it. full: the table is at its limit. nonfinite: NaN or infinite.",
              (f"rate(zillion_embedding_waiting_gradients_total{{{I}}}{R})", "{{table}} waiting"),
              (f"rate(zillion_embedding_refused_gradients_total{{{I}}}{R})", "{{table}} refused"),
              (f"rate(zillion_embedding_refused_full_gradients_total{{{I}}}{R})", "{{table}} full"),
              (f"rate(zillion_embedding_nonfinite_gradients_total{{{I}}}{R})", "{{table}} nonfinite")),
        panel("Cut to a narrow row", RATE, "Row gradients of narrow rows: their part for the missing floats was dropped.",
              (f"rate(zillion_embedding_narrow_gradients_total{{{I}}}{R})", "{{table}}")),
        panel("Weights held at the largest number", RATE, "Updates beyond the largest number of the table's dtype; in f16 that is 65504.",
              (f"rate(zillion_embedding_saturated_weights_total{{{I}}}{R})", "{{table}}")),
    ]),
    ("In servers", [
        panel("Rows in layers", COUNT, "Rows in the layers of the current version; a row in several layers counts in each.",
              (f"zillion_serving_table_rows{{{I}}}", "{{model}} {{table}}")),
        panel("Mapped bytes", BYTES, "Bytes of the current version's rows.", (f"zillion_serving_table_bytes{{{I}}}", "{{model}} {{table}}")),
        panel("Layers with rows", COUNT, "The most layers that a lookup probes.", (f"zillion_serving_table_layers{{{I}}}", "{{model}} {{table}}")),
    ]),
]

SERVING = [
    ("Requests", [
        stat("Ready", COUNT, "1 while every model has a version that answers.", (f"zillion_serving_ready{{{I}}}", "{{instance}}")),
        panel("Requests a second", RATE, "Requests by outcome.",
              (f"sum by (status) (rate(zillion_serving_requests_total{{{M}}}{R}))", "{{status}}"),
              ("zillion:serving_requests:rate5m", "{{model}} {{protocol}} over 5 minutes")),
        panel("Share of errors", SHARE, "Answers with 5xx.", ("zillion:serving_errors:ratio5m", "{{model}}")),
        panel("Time of a request", SECONDS, "Time from the head of a request to its answer.",
              *quantiles("zillion_serving_request_seconds", ["model"], M), mean("zillion_serving_request_seconds", ["model"], M)),
        panel("Time of a stage", SECONDS, "receive: the client's network. queue: too few threads. score: encoding, lookup, model.",
              *quantiles("zillion_serving_stage_seconds", ["stage"], I)[2:], mean("zillion_serving_stage_seconds", ["stage"], I)),
        panel("Waiting work", "ms", "Estimated time until a request that comes now begins. Above the bound, requests are refused with 429.",
              (f"zillion_serving_waiting_work_milliseconds{{{I}}}", "work")),
        panel("Waiting", COUNT, "Requests that wait for a thread.", (f"zillion_serving_waiting_requests{{{I}}}", "requests")),
        panel("Bytes in flight", "bytes", "Bytes of bodies and answers in the server.",
              (f"zillion_serving_bytes_in_flight{{{I}}}", "bytes")),
        panel("Age of the registry's answer", SECONDS, "Time since the registry last answered; a stale model is served from its versions.",
              (f"zillion_serving_registry_age_seconds{{{M}}}", "{{model}}"), (f"zillion_serving_stale{{{M}}}", "{{model}} stale")),
        panel("Loaders", RATE, "Panics of loaders and cached files that had changed on the disk: both must be 0.",
              (f"rate(zillion_serving_loader_panics_total{{{M}}}{R})", "{{model}} panics"),
              (f"rate(zillion_serving_cache_damaged_files_total{{{M}}}{R})", "{{model}} damaged files"),
              (f"rate(zillion_serving_registry_write_failures_total{{{M}}}{R})",
               "{{model}} refused writes")),
        panel("Closed connections", RATE, "Connections that the server closed or refused, by reason.",
              (f"rate(zillion_serving_closed_connections_total{{{I}}}{R})", "{{reason}}")),
        panel("Refused callers", RATE, "Requests of callers that are unknown or may not make them, by reason.",
              (f"rate(zillion_serving_refused_callers_total{{{I}}}{R})", "{{reason}}")),
        panel("Shadow version", COUNT, "Mean difference between the answer and the shadow version, and requests that it skipped a second.",
              mean("zillion_serving_shadow_difference", ["model"], M),
              (f"rate(zillion_serving_shadow_skipped_total{{{M}}}{R})", "{{model}} skipped")),
        panel("Open", COUNT, "Open requests and connections.",
              (f"zillion_serving_open_requests{{{I}}}", "requests"), (f"zillion_serving_open_connections{{{I}}}", "connections")),
    ]),
    ("Rows", [
        panel("Rows a second", RATE, "Rows scored.", (f"rate(zillion_serving_rows_total{{{M}}}{R})", "{{model}}")),
        panel("Unknown keys a row", COUNT, "Unique keys that read their table's default, divided by rows.",
              (f"rate(zillion_serving_missing_keys_total{{{M}}}{R}) / rate(zillion_serving_rows_total{{{M}}}{R})", "{{model}}")),
        panel("Rows without a row in a side table", RATE, "The features of that table are missing in these rows.",
              (f"rate(zillion_serving_missing_side_rows_total{{{M}}}{R})", "{{model}}")),
    ]),
    ("Under Triton's names", [
        panel("Requests", RATE, "Requests that were answered, and that were not, as Triton counts them.",
              (f"sum by (model, version) (rate(nv_inference_request_success{{{I}}}{R}))", "{{model}} {{version}} success"),
              (f"sum by (model, version) (rate(nv_inference_request_failure{{{I}}}{R}))", "{{model}} {{version}} failure")),
        panel("Rows and runs", RATE, "nv_inference_count are rows, nv_inference_exec_count runs of the model.",
              (f"sum by (model) (rate(nv_inference_count{{{I}}}{R}))", "{{model}} rows"),
              (f"sum by (model) (rate(nv_inference_exec_count{{{I}}}{R}))", "{{model}} runs")),
        panel("Microseconds a request", "µs", "Time of a request, of its wait, and of its parts.",
              *[(f"rate(nv_inference_{part}_duration_us{{{I}}}{R}) / rate(nv_inference_request_success{{{I}}}{R})", "{{model}} " + part)
                for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")]),
    ]),
    ("Process", [
        panel("Memory", BYTES, "Resident and virtual; versions are mapped files, whose pages several processes share.",
              (f"process_resident_memory_bytes{{{I}}}", "resident"), (f"process_virtual_memory_bytes{{{I}}}", "virtual"),
              (f"zillion_memory_reserve_bytes{{{I}}}", "ready for tables")),
        panel("Processors", COUNT, "Busy processors, and threads.",
              (f"rate(process_cpu_seconds_total{{{I}}}{R})", "busy"), (f"process_threads{{{I}}}", "threads")),
        panel("File descriptors", COUNT, "Open file descriptors, and their limit.",
              (f"process_open_fds{{{I}}}", "open"), (f"process_max_fds{{{I}}}", "limit")),
        panel("Reloads of settings", COUNT, "Reloads by SIGHUP: done, or refused because of an error.",
              (f"zillion_serving_config_reloads_total{{{I}}}", "{{outcome}}")),
        stat("Program", COUNT, "Version of the program, and the time since its start.",
             (f'zillion_build_info{{{I}, role="server"}}', "{{version}} {{arch}}"),
             (f"time() - process_start_time_seconds{{{I}}}", "seconds up")),
    ]),
]

LIFECYCLE = [
    ("Freshness", [
        panel("Event to servable", SECONDS, "Time from the newest event that a version was trained on to the moment when it could answer.",
              *quantiles("zillion_serving_freshness_seconds", ["model"], M), ("zillion:serving_freshness_seconds:p90_1h", "{{model}} p90 over an hour"),
              mean("zillion_serving_freshness_seconds", ["model"], M)),
        panel("Published to servable", SECONDS, "Time from publication to the moment when a version could answer: fetching, merging, scoring parity rows.",
              *quantiles("zillion_serving_publish_to_servable_seconds", ["model"], M), mean("zillion_serving_publish_to_servable_seconds", ["model"], M)),
        panel("Age of the current version", SECONDS, "Time since its publication, and since its newest event.",
              (f"time() - (zillion_serving_version_published_timestamp_seconds{{{M}}} > 0)", "{{instance}} version"),
              (f"time() - (zillion_serving_newest_event_timestamp_seconds{{{M}}} > 0)", "{{instance}} newest event")),
        panel("Age of the newest trained event", SECONDS, "Time since the newest event that was trained on.",
              (f"time() - (zillion_trainer_newest_event_timestamp_seconds{{{I}}} > 0)", "{{instance}}")),
    ]),
    ("Versions", [
        panel("Current version", COUNT, "The version that answers requests without a version, and the one that was published last.",
              (f"zillion_serving_current_version{{{M}}}", "{{instance}} {{model}}"),
              (f"zillion_trainer_published_version{{{I}}}", "published")),
        panel("Open versions and layers", COUNT, "Versions that are loaded, and layers that a lookup probes.",
              (f"zillion_serving_open_versions{{{M}}}", "{{model}} versions"), (f"zillion_serving_layers{{{M}}}", "{{model}} layers")),
        panel("Rollbacks", COUNT, "Moves of requests to an older version.",
              (f"increase(zillion_serving_rollbacks_total{{{M}}}{R})", "{{instance}} {{model}}")),
    ]),
    ("Publishing", [
        panel("Time to publish", SECONDS, "Time of an attempt to publish.", *quantiles("zillion_trainer_publish_seconds", [], I), mean("zillion_trainer_publish_seconds", [], I)),
        panel("Rows published", RATE, "Rows of published versions: all of a base, the changed ones of a delta.",
              (f"rate(zillion_trainer_published_rows_total{{{I}}}{R})", "{{instance}}")),
        panel("Failed publications", COUNT, "Versions that could not be published; the next one has what they lack.",
              (f"increase(zillion_trainer_publish_failures_total{{{I}}}{R})", "{{instance}}")),
        stat("Last version", SECONDS, "Time since its publication.",
             (f"time() - (zillion_trainer_published_timestamp_seconds{{{I}}} > 0)", "{{instance}}")),
    ]),
    ("Checkpoints", [
        panel("Time of a checkpoint", SECONDS, "Time from the moment of a checkpoint until it is written; training goes on meanwhile.",
              *quantiles("zillion_trainer_checkpoint_seconds", [], I), mean("zillion_trainer_checkpoint_seconds", [], I)),
        panel("Size", BYTES, "Size of the last checkpoint.", (f"zillion_trainer_checkpoint_bytes{{{I}}}", "{{instance}}")),
        stat("Last checkpoint", SECONDS, "Time since the last checkpoint.",
             (f"time() - (zillion_trainer_checkpoint_timestamp_seconds{{{I}}} > 0)", "{{instance}}")),
    ]),
    ("Loading", [
        panel("Loads by outcome", RATE, "ok: the version answers. parity: its scores differ from training. store: the registry could not be asked.",
              (f"rate(zillion_serving_loads_total{{{M}}}{R})", "{{model}} {{outcome}}"),
              (f"rate(zillion_serving_load_failures_total{{{M}}}{R})", "{{model}} new problems")),
        panel("Time to load", SECONDS, "Time from the first sight of a version to serving it.",
              *quantiles("zillion_serving_load_seconds", ["model"], M), mean("zillion_serving_load_seconds", ["model"], M)),
        panel("Slices", SECONDS, "Time between two pauses of the loader: by the clock, and of the processor.",
              *quantiles("zillion_serving_load_slice_seconds", [], I)[2:], mean("zillion_serving_load_slice_seconds", [], I),
              *[(e, "cpu " + n) for e, n in quantiles("zillion_serving_load_slice_cpu_seconds", [], I)[2:]],
              (mean("zillion_serving_load_slice_cpu_seconds", [], I)[0], "cpu mean")),
        panel("Registry seen", SECONDS, "Time since the registry last said which version is meant.",
              (f"time() - (zillion_serving_registry_seen_timestamp_seconds{{{M}}} > 0)", "{{instance}} {{model}}")),
    ]),
    ("Cache of the servers", [
        panel("Size", BYTES, "Bytes of the model's cache folder.", (f"zillion_serving_cache_bytes{{{M}}}", "{{instance}} {{model}}")),
        panel("Files", COUNT, "Files of the model's cache folder.", (f"zillion_serving_cache_files{{{M}}}", "{{instance}} {{model}}")),
        panel("Fetched", "Bps", "Bytes and files fetched from the registry.", (f"rate(zillion_serving_fetched_bytes_total{{{M}}}{R})", "{{model}} bytes"),
              (f"rate(zillion_serving_fetched_files_total{{{M}}}{R})", "{{model}} files")),
        panel("Merged", "Bps", "Layers merged to one.", (f"rate(zillion_serving_merged_bytes_total{{{M}}}{R})", "{{model}} bytes"),
              (f"rate(zillion_serving_merges_total{{{M}}}{R})", "{{model}} merges")),
    ]),
    ("Store of the registry", [
        panel("Requests", RATE, "Requests by outcome.", (f"sum by (outcome) (rate(zillion_registry_store_requests_total{{{I}}}{R}))", "{{outcome}}")),
        panel("Time of a request", SECONDS, "Time by operation.",
              (f"sum by (operation) (rate(zillion_registry_store_request_seconds_total{{{I}}}{R})) / sum by (operation) (rate(zillion_registry_store_requests_total{{{I}}}{R}))", "{{operation}}")),
        panel("Retries and failures", RATE, "Requests that were made again, and operations that failed after all tries.",
              (f"sum by (operation) (rate(zillion_registry_store_retries_total{{{I}}}{R}))", "{{operation}} again"),
              (f"sum by (operation) (rate(zillion_registry_store_failures_total{{{I}}}{R}))", "{{operation}} failed")),
        panel("Back-off", SHARE, "Share of the time spent waiting between tries.",
              (f"rate(zillion_registry_store_backoff_seconds_total{{{I}}}{R})", "{{instance}}")),
        panel("Bytes", "Bps", "Sent to the store, and received.",
              (f"rate(zillion_registry_store_sent_bytes_total{{{I}}}{R})", "sent"),
              (f"rate(zillion_registry_store_received_bytes_total{{{I}}}{R})", "received")),
    ]),
]

PARAMETER_SERVERS = [
    ("Generations", [
        stat("Generation", COUNT, "Generation that each server serves or has served last. All servers of a run have the same one.",
             (f"zillion_ps_generation{{{I}}}", "{{instance}}")),
        stat("Open", COUNT, "1 while a generation goes on; 0: no trainer has begun one, or it has ended.",
             (f"zillion_ps_generation_open{{{I}}}", "{{instance}}")),
        stat("Slots", COUNT, "Slots of 4,096 whose keys the server holds; together the servers of a run have all of them.",
             (f"zillion_ps_slots{{{I}}}", "{{instance}}")),
        panel("Generations that ended", COUNT, "Each one is a restart of the run from its newest checkpoint, or the end of a run.",
              (f"increase(zillion_ps_generations_ended_total{{{I}}}{R})", "{{instance}}")),
        panel("Steps a second", RATE, "Steps of the run; servers of one run are at the same step.",
              (f"rate(zillion_ps_step{{{I}}}{R})", "{{instance}}"), (f"zillion_ps_step{{{I}}}", "{{instance}} step")),
        panel("Silence of trainers", SECONDS, "Time since the last sign of life of each trainer; beyond the lease (10 s) the generation ends.",
              (f"zillion_ps_trainer_silent_seconds{{{I}}}", "{{instance}} trainer {{trainer}}")),
        panel("Steps of trainers", RATE, "Steps of each trainer whose updates are applied. Only in the modes hybrid and async, in which trainers do not wait for each other.",
              (f"rate(zillion_ps_applied_steps{{{I}}}{R})", "{{instance}} trainer {{trainer}}")),
        panel("Staleness of pulls", RATE, "Pulls by the number of steps of the slowest trainer that their rows lacked. It never exceeds train.staleness.",
              (f"sum by (staleness) (rate(zillion_ps_stale_pulls_total{{{I}}}{R}))", "{{staleness}} steps")),
    ]),
    ("Work", [
        panel("Frames a second", RATE, "Frames by operation.",
              (f"sum by (operation) (rate(zillion_ps_frames_total{{{I}}}{R}) > 0)", "{{operation}}")),
        panel("Processors by operation", COUNT, "Share of a second in which the thread of the tables works on an operation; 1 in all is a server at its limit.",
              (f"sum by (instance, operation) (rate(zillion_ps_work_seconds_total{{{I}}}{R}) > 0)", "{{instance}} {{operation}}")),
        panel("Time of a frame", SECONDS, "Mean time of work on a frame, without its time in sockets and in the queue.",
              (f"sum by (operation) (rate(zillion_ps_work_seconds_total{{{I}}}{R})) / sum by (operation) (rate(zillion_ps_frames_total{{{I}}}{R}) > 0)",
               "{{operation}}")),
        panel("Rows", COUNT, "Rows of each table on each server. The dashboard of tables shows more of them.",
              (f"zillion_embedding_rows{{{I}}}", "{{instance}} {{table}}")),
        panel("Lookups", RATE, "Unique keys that were looked up.", (f"rate(zillion_embedding_pulled_keys_total{{{I}}}{R})", "{{instance}} {{table}}")),
        panel("Memory of tables", BYTES, "All kinds together.", (f"sum by (instance, table) (zillion_embedding_bytes{{{I}}})", "{{instance}} {{table}}")),
    ]),
    ("Connections", [
        panel("Open connections", COUNT, "Each trainer has two: one for its frames and one for signs of life.",
              (f"zillion_ps_open_connections{{{I}}}", "{{instance}}")),
        panel("New connections", RATE, "accepted: opened. refused: closed at once, because too many were open.",
              (f"rate(zillion_ps_accepted_connections_total{{{I}}}{R})", "{{instance}} accepted"),
              (f"rate(zillion_ps_refused_connections_total{{{I}}}{R})", "{{instance}} refused")),
        panel("Bytes", "Bps", "Received and sent.",
              (f"rate(zillion_ps_received_bytes_total{{{I}}}{R})", "{{instance}} received"),
              (f"rate(zillion_ps_sent_bytes_total{{{I}}}{R})", "{{instance}} sent")),
        panel("Bytes in flight", BYTES, "Bytes of the frames that wait for the tables, and their limit.",
              (f"zillion_ps_bytes_in_flight{{{I}}}", "{{instance}}"), (f"zillion_ps_bytes_in_flight_limit{{{I}}}", "{{instance}} limit")),
        panel("Frames without an effect", RATE,
              "bad: not valid. repeated: sent again after a connection was cut, and answered from memory. stale: of an earlier generation.",
              (f"rate(zillion_ps_bad_frames_total{{{I}}}{R})", "{{instance}} bad"),
              (f"rate(zillion_ps_repeated_frames_total{{{I}}}{R})", "{{instance}} repeated"),
              (f"rate(zillion_ps_stale_frames_total{{{I}}}{R})", "{{instance}} stale")),
        panel("Processors and memory", COUNT, "Busy processors, and resident bytes.",
              (f"rate(process_cpu_seconds_total{{{I}}}{R})", "{{instance}} busy"),
              (f"process_resident_memory_bytes{{{I}}}", "{{instance}} resident")),
    ]),
]

# File, title, filter of its instances (by zillion_build_info), whether it has models, rows.
DASHBOARDS = [
    ("training", "Zillion: training", 'role="trainer"', False, TRAINING),
    ("tables", "Zillion: tables", "", False, TABLES),
    ("serving", "Zillion: serving", 'role="server"', True, SERVING),
    ("lifecycle", "Zillion: life cycle", "", True, LIFECYCLE),
    ("servers", "Zillion: parameter servers", 'role="ps"', False, PARAMETER_SERVERS),
]
