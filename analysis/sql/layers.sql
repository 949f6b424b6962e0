-- layers: one row per number that was measured of a network's layer.
--
-- measure   what a strategy selects by, of the pre-trained network over the dev rows:
--           contribution     mean cosine of the sentence token before and after the layer
--           block_influence  the same cosine, pooled token mean: every token of dev counts once;
--                            1 minus it is the block influence
--           angular          between the input of `layer` and the output of `other`: share of pi that
--                            the sentence token turns
--           greedy           value: the step, from 1, at which the layer was dropped (0: it stayed);
--                            rows named score: the score of what was left, on train rows held out
--           what was asked for with `measure:` in the sweep, of trained networks:
--           probes           name: the metric of a linear classifier on the sentence token
--           similarity       with the pre-trained network; name: sentence (token), tokens (per-text
--                            token mean: each text's tokens averaged first, then the texts)
--           cka              of `layer` with layer `other` of the network of `against` (null: of the
--                            pre-trained one); name: layer, attention (the outputs of which part)
-- trial_id  whose network it is; null: the pre-trained one. depth, kept_layers: of that network.
-- layer     1 is the layer next to the embeddings, 0 the embedding output; original numbers.
-- value     -1..1; null where it is not a number (all examples are one point)
SELECT
    profile_id, measure, model, depth, task, trial_id, against, seed, kept_layers,
    entry.name AS name,
    entry.layer AS layer,
    entry.other AS other,
    entry.value AS value,
    dev_examples
FROM (
    SELECT * EXCLUDE (layers, values), unnest(list_concat(
        list_transform(
            coalesce(layers, []),
            lambda item: {'name': NULL::VARCHAR, 'layer': item.layer, 'other': NULL::INT,
                'value': item.value}
        ),
        coalesce("values", [])
    )) AS entry
    FROM store.profiles
    QUALIFY row_number() OVER (PARTITION BY profile_id ORDER BY ended_at DESC) = 1
)
