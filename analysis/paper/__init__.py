"""Poor Man's BERT (Sajjad, Dalvi, Durrani, Nakov 2020): its numbers, beside those of a store."""
