-- speed_table: size and speed. One row per network of a sweep, and per device and batch that its speed
-- was measured on. A network without a measurement has one row, and null for its speed.
--
-- A speed is measured (`measure: {speed: ...}` in the sweep file) and never derived: the network and
-- the full model take turns in one process on one device. Rows of two devices, precisions, lengths or
-- batches are not comparable: no ratio is taken across them.
--
-- kept_layers, feed_forward      the network; its speed holds for all tasks, seeds and procedures
-- params_total, params_percent   parameters (median over tasks, whose heads differ), and their share
--                                of the full network's; n_trials: how many trials counted them
-- device_name, device_type, threads, precision, length, batch   how it was measured: threads of a CPU,
--                                tokens per row, none of them padding, and rows per batch
-- finetune_speedup, inference_speedup   how many times as fast as with all layers, for a step with
--                                AdamW and for a forward pass: median over the pairs; _q25, _q75 are
--                                the quartiles. The full network is measured against itself: its
--                                difference from 1 is the error
-- finetune_ms, inference_ms      time of a batch: CPU time over all threads, or GPU time; _full_ms:
--                                with all layers. _wall_ms: the same in wall-clock time
-- pairs                          the number of pairs, the smaller one of the two
-- finetune_steady, inference_steady   whether the standard error of the speed-up is at most 1%
-- others_busy_cores              cores that other processes kept busy meanwhile (null: not known)
WITH networks AS (
    SELECT
        cells.sweep, cells.model, cells.feed_forward, cells.depth, cells.kept_layers, cells.n_kept,
        trials.model_fingerprint,
        coalesce(trials.removed_feed_forwards, []) AS removed_feed_forwards,
        coalesce(trials.second_norm, 'keep') AS second_norm,
        quantile_disc(trials.params_total, 0.5) AS params_total,
        count(DISTINCT trials.trial_id) AS n_trials
    FROM cells
    JOIN trials ON trials.trial_id = cells.trial_id
    GROUP BY ALL
),

full_params AS (
    SELECT sweep, model, model_fingerprint, params_total AS params_full
    FROM networks
    WHERE n_kept = depth AND feed_forward = 'none'
),

timings AS (
    SELECT * EXCLUDE (timings), unnest(timings) AS timing
    FROM (
        FROM store.profiles
        WHERE measure = 'speed'
        QUALIFY row_number() OVER (PARTITION BY profile_id ORDER BY ended_at DESC) = 1
    )
),

speeds AS (
    SELECT
        profile_id, model_fingerprint, kept_layers, removed_feed_forwards, second_norm,
        device_type, device_name,
        CASE WHEN device_type = 'cpu' THEN threads END AS threads,
        precision_used AS precision,
        max_length AS length,
        timing.batch AS batch,
        others_busy_cores,
        min(timing.pairs) AS pairs,
        {
            'finetune': any_value(timing) FILTER (timing.quantity = 'finetune'),
            'inference': any_value(timing) FILTER (timing.quantity = 'inference')
        } AS of
    FROM timings
    GROUP BY ALL
)

SELECT
    networks.sweep, networks.model, networks.feed_forward, networks.depth,
    networks.depth - networks.n_kept AS k, networks.n_kept, networks.kept_layers,
    networks.params_total,
    100 * networks.params_total / full_params.params_full AS params_percent,
    networks.n_trials,
    speeds.device_name, speeds.device_type, speeds.threads, speeds.precision, speeds.length,
    speeds.batch,
    of.finetune.speedup AS finetune_speedup,
    of.finetune.speedup_q25 AS finetune_q25,
    of.finetune.speedup_q75 AS finetune_q75,
    of.inference.speedup AS inference_speedup,
    of.inference.speedup_q25 AS inference_q25,
    of.inference.speedup_q75 AS inference_q75,
    of.finetune.pruned_ms AS finetune_ms,
    of.finetune.full_ms AS finetune_full_ms,
    of.finetune.pruned_wall_ms AS finetune_wall_ms,
    of.inference.pruned_ms AS inference_ms,
    of.inference.full_ms AS inference_full_ms,
    of.inference.pruned_wall_ms AS inference_wall_ms,
    speeds.pairs,
    0.929 * (of.finetune.speedup_q75 - of.finetune.speedup_q25) / sqrt(of.finetune.pairs)
        <= 0.01 * of.finetune.speedup AS finetune_steady,
    0.929 * (of.inference.speedup_q75 - of.inference.speedup_q25) / sqrt(of.inference.pairs)
        <= 0.01 * of.inference.speedup AS inference_steady,
    speeds.others_busy_cores,
    speeds.profile_id
FROM networks
LEFT JOIN full_params
    ON (full_params.sweep, full_params.model) = (networks.sweep, networks.model)
    AND full_params.model_fingerprint IS NOT DISTINCT FROM networks.model_fingerprint
LEFT JOIN speeds
    ON speeds.model_fingerprint = networks.model_fingerprint
    AND speeds.kept_layers = networks.kept_layers
    AND speeds.removed_feed_forwards = networks.removed_feed_forwards
    AND speeds.second_norm = networks.second_norm
