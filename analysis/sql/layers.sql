-- layers: one row per measured number of a network's layer.
--
-- measure   Strategies select layers by these measures of the pre-trained network on the dev rows:
--           contribution     mean cosine of the sentence token before and after the layer
--           block_influence  the same cosine, pooled token mean: every token of dev counts once;
--                            1 minus it is the block influence
--           angular          the angle between the sentence token in the input of `layer` and in the
--                            output of `other`, as a share of pi
--           greedy           value: the step, from 1, at which the layer was dropped (0: it stayed);
--                            rows named score: the score of the layers left, on held-out train rows
--           `recipe: auto` asks for one that is not of a layer, which is 0:
--           recipe           name: learning_rate and epochs, as found; score at 2e-05, ...: of held-out
--                            train rows, after `other` steps
--           `measure:` in the sweep asks for these, of trained networks:
--           probes           name: the metric of a linear classifier on the sentence token
--           similarity       cosine with the pre-trained network; name: sentence (token), tokens
--                            (per-text token mean: first over each text's tokens, then over texts)
--           cka              CKA of `layer` with layer `other` of the network `against` (null: the
--                            pre-trained one); name: the compared outputs, layer or attention
-- trial_id  the trial of the network; null: the pre-trained one. depth, kept_layers: its layers.
-- layer     1 is the layer next to the embeddings, 0 the embedding output; original numbers.
-- value     -1..1; null where it is not a number (all examples coincide)
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
