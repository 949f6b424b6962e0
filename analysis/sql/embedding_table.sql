-- embedding_table: score, speed and index size of networks for embeddings. One row per sweep, model,
-- procedure, strategy, K (or threshold), embedding task, and device that its speed was measured on; none
-- for an impossible K.
--
-- mean, sd, n, n_expected, n_asked, state, change, mixed   of its scores, as in task_table
-- vector_width       numbers in a vector; index_row_bytes: its bytes in an index, 4 per number
-- texts_per_second_1, texts_per_second_64   wall-clock speed, one text at a time and 64 at a time, of
--                    `length` tokens each; null where that batch was not timed
--                    (`measure: {speed: ..., speed_batches: [1, 64]}`)
-- device_name, device_type, threads, precision, length   how it was measured, as in speed_table
WITH widths AS (
    SELECT cells.sweep, cells.model, cells.task, any_value(trials.vector_width) AS vector_width
    FROM cells
    JOIN trials ON trials.trial_id = cells.trial_id
    WHERE trials.vector_width IS NOT NULL
    GROUP BY ALL
),

rates AS (
    SELECT
        sweep, model, feed_forward, kept_layers, device_name, device_type, threads, precision,
        length, any_value(profile_id) AS profile_id,
        max(1000 * batch / inference_wall_ms) FILTER (WHERE batch = 1) AS texts_per_second_1,
        max(1000 * batch / inference_wall_ms) FILTER (WHERE batch = 64) AS texts_per_second_64
    FROM speed_table
    WHERE inference_wall_ms IS NOT NULL
    GROUP BY ALL
)

SELECT
    task_table.sweep, task_table.model, task_table.procedure, task_table.feed_forward,
    task_table.strategy, task_table.k, task_table.threshold, task_table.task, task_table.metric,
    task_table.positive, task_table.depth, task_table.kept_layers, task_table.mean, task_table.sd,
    task_table.n, task_table.n_expected, task_table.n_asked, task_table.state, task_table.change,
    task_table.mixed, task_table.position,
    widths.vector_width,
    4 * widths.vector_width AS index_row_bytes,
    rates.texts_per_second_1, rates.texts_per_second_64,
    rates.device_name, rates.device_type, rates.threads, rates.precision, rates.length,
    rates.profile_id
FROM task_table
JOIN widths
    ON (widths.sweep, widths.model, widths.task)
    = (task_table.sweep, task_table.model, task_table.task)
LEFT JOIN rates
    ON (rates.sweep, rates.model, rates.feed_forward, rates.kept_layers)
    = (task_table.sweep, task_table.model, task_table.feed_forward, task_table.kept_layers)
WHERE task_table.state <> 'impossible'
