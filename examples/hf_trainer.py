"""Hugging Face's Trainer with a rank loss: a transformer gives each text a score, of which only the order counts.

    pip install "transformers[torch]" && python examples/hf_trainer.py

The model is tiny and starts from random weights, so that nothing is downloaded. For your own take
``AutoModelForSequenceClassification.from_pretrained(name, num_labels=1)``, its tokenizer, and texts with values.
"""

import tempfile

import torch
import transformers

import sodeep


def rank_loss(outputs, labels, num_items_in_batch=None):
    """The loss of a batch, which is one list: take batches of 32 items or more."""
    return sodeep.spearman_loss(outputs.logits.squeeze(-1), labels, rank_fn=sodeep.laplace_rank)


def spearman(prediction):
    """Of all items of the evaluation, not a mean over its batches."""
    scores, target = (torch.from_numpy(x) for x in prediction)
    return {"spearman": sodeep.spearman_corr(scores.squeeze(-1), target).item()}


def texts(count, generator):
    """Made-up texts of 12 words, and a value: how many of them are among the first 20 of 100, cubed."""
    words = torch.randint(100, (count, 12), generator=generator)
    values = (words < 20).sum(1).float() ** 3
    return [{"input_ids": row, "labels": value} for row, value in zip(words, values, strict=True)]


def main(steps=150, folder=None):
    """Train on texts, and print the Spearman correlation on others before and after."""
    transformers.set_seed(0)
    generator = torch.Generator().manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=1
    )
    arguments = transformers.TrainingArguments(
        folder or tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=64, learning_rate=3e-3,
        use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(config), arguments, train_dataset=texts(1000, generator),
        eval_dataset=texts(200, generator), compute_loss_func=rank_loss, compute_metrics=spearman,
    )  # fmt: skip
    print(f"before: Spearman {trainer.evaluate()['eval_spearman']:.3f}")
    trainer.train()
    print(f"after:  Spearman {trainer.evaluate()['eval_spearman']:.3f}")


if __name__ == "__main__":
    main()
