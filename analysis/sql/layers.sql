-- layers: one row per profile and layer: what a strategy measured before it could choose.
--
-- layer    1 is the layer next to the embeddings.
-- measure  contribution: the mean cosine, over the dev rows, of the sentence token before and after
--          the layer, in the pre-trained model. Near 1 the layer changes little.
-- value    -1..1
SELECT
    profile_id, measure, model, depth, task,
    entry.layer AS layer,
    entry.value AS value,
    dev_examples
FROM (
    SELECT *, unnest(layers) AS entry
    FROM store.profiles
    QUALIFY row_number() OVER (PARTITION BY profile_id ORDER BY ended_at DESC) = 1
)
