-- deployments: one row per network of a task, artefact and device: what it costs to serve, measured
-- as shipped. An artefact is a format and a vocabulary.
--
-- n_kept, kept_layers   the network: layers of the trial `trial_id`
-- artefact              torch, onnx, onnx-int8, onnx-int4; with a cut vocabulary: `onnx-int8, task`; cut
--                       on more texts than the train rows: `onnx-int8, task and texts`
-- pieces, words_cut     entries of its vocabulary, and the share of the dev set's words that are cut
--                       up otherwise than with the full vocabulary
-- score                 points (0..100) of this artefact over the whole dev set
-- change                score minus that of the full model as torch on the same device, in points
-- ms, ms_p95            wall time of one text of the dev set, tokenizer included: median, and 95th
--                       percentile; tokenizer_ms: the median of the tokenizer alone
-- times_as_fast         ms of the full model as torch / ms, both of this session
-- texts_per_second      in batches of 32 rows
-- mb, share_of_size     10^6 bytes of all files that serving needs, and their share of the full
--                       model's as torch; peak_memory_mb: the peak resident set of a process that
--                       loads it and answers 32 rows
-- session               artefacts that took turns in one process: milliseconds of two sessions, and
--                       of two devices, are not comparable
-- extra_texts           fingerprints of the texts, beyond the train rows, that a vocabulary was cut on
-- seconds_total         making the artefact, its answers and its turns
-- others_busy_cores     cores that other processes kept busy meanwhile (null: not known)
-- error                 why it could not be made or run; then it has no score
SELECT
    own.deployment_id, own.trial_id, own.model, own.depth, len(own.kept_layers) AS n_kept,
    own.kept_layers, own.removed_feed_forwards, own.task, own.seed,
    own.format, own.vocabulary, coalesce(TRY_CAST(own.spec AS JSON) ->> 'extra_texts', '') AS extra_texts,
    own.format || CASE WHEN own.vocabulary = 'full' THEN '' ELSE ', ' || own.vocabulary END
        || CASE WHEN TRY_CAST(own.spec AS JSON) ->> 'extra_texts' IS NULL THEN '' ELSE ' and texts' END AS artefact,
    own.pieces, own.words_cut, own.metric,
    100 * own.score AS score,
    100 * (own.score - whole.score) AS change,
    own.dev_examples, own.ms, own.ms_p95, own.tokenizer_ms,
    own.baseline_ms / own.ms AS times_as_fast,
    own.texts_per_second,
    own.bytes / 1e6 AS mb,
    own.bytes / whole.bytes AS share_of_size,
    own.peak_memory_bytes / 1e6 AS peak_memory_mb,
    own.device_type, own.device_name, own.threads, own.host,
    own.session, own.baseline, own.rounds, own.others_busy_cores, own.error, own.sha256,
    own.seconds_total, own.started_at, own.ended_at
FROM store.deployments AS own
LEFT JOIN store.deployments AS whole ON whole.deployment_id = own.baseline
