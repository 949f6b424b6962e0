-- recipe_differences: settings that differ between done cells of one sweep, model, procedure and task,
-- besides their layers and seed. The other views compare these cells as if they had been trained
-- alike. One row per setting, and no row where nothing differs. Such cells exist where a sweep file
-- was changed and then only partly run.
--
-- setting  a key of `recipe:`; task: how the rows are read and scored; data_fingerprint,
--          model_fingerprint: other rows, another model of the same name.
-- found    its values, as text. none: no limit.
WITH trained AS (
    SELECT
        cells.sweep, cells.model, cells.procedure, cells.task AS name,
        trials.learning_rate, trials.batch_size, trials.epochs, trials.max_length,
        trials.weight_decay, trials.adam_beta1, trials.adam_beta2, trials.adam_epsilon,
        trials.max_grad_norm, trials.warmup_ratio, trials.schedule,
        -- `auto` is bf16 on one device and fp32 on another
        coalesce(trials.precision_used, trials.precision) AS precision,
        trials.compute, trials.group_by_length, trials.freeze_embeddings,
        -- null in any other column: the file is older than the column
        coalesce(trials.limit_train::VARCHAR, 'none') AS limit_train,
        coalesce(trials.limit_dev::VARCHAR, 'none') AS limit_dev,
        CASE WHEN json_valid(trials.spec) THEN trials.spec -> 'task' END AS task,
        trials.data_fingerprint, trials.model_fingerprint
    FROM cells
    JOIN trials ON trials.trial_id = cells.trial_id
),

unlike AS (  -- keeps what differs, so that fewer settings are unpacked below
    SELECT sweep, model, procedure, name
    FROM trained
    GROUP BY ALL
    HAVING min(hash(trained)) < max(hash(trained))
)

SELECT sweep, model, procedure, name AS task, setting, list(DISTINCT value ORDER BY value) AS found
FROM (
    UNPIVOT (
        SELECT
            sweep, model, procedure, name,
            COLUMNS(* EXCLUDE (sweep, model, procedure, name))::VARCHAR
        FROM trained
        SEMI JOIN unlike USING (sweep, model, procedure, name)
    )
    ON COLUMNS(* EXCLUDE (sweep, model, procedure, name))
    INTO NAME setting VALUE value
)
GROUP BY sweep, model, procedure, name, setting
HAVING count(DISTINCT value) > 1
