"""A tokenizer of four words."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]


def tiny_tokenizer(words: list[str] = WORDS, *, types: bool = True, xlnet: bool = False):
    """Words at blanks. BERT's template, or XLNet's: sentence token and padding of its own type."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    if xlnet:
        single, pair = "$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"][:: 1 if types else 2],
        padding_side="left" if xlnet else "right",
        pad_token_type_id=3 if xlnet else 0,
    )
