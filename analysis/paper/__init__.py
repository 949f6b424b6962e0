"""The numbers of Poor Man's BERT (Sajjad, Dalvi, Durrani, Nakov 2020), next to those of a store."""
