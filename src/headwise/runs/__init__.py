"""Runs of recipes, whatever the task: one, many, and finished ones.

    preparing, one_run, model_card      one run: its data and model, training, evaluation
    comparing, running                  many runs, one after the other or side by side
    grid, tuning, matching              with values that each system chooses, or of one size
    reading, evaluating                 what is done with a finished run
    folder, locking                     what its folder holds, and whose it is

A run lives in a folder of its own:

    recipe.yaml         what it is a run of; nothing else is ever trained in the folder
    corpus.sha256       and on what data (of a comparison: in the folder above)
    pretrained.sha256   and from which weights, if its model starts from another run
    tokenizer/, ...     what encodes the data
    checkpoint-N/       what it resumes from
    logs/               what TensorBoard reads, if training.report_to names it
    model/              the final model, a Hugging Face folder that stands alone, with its card
    outputs.txt         what it wrote for the test part, one a line, where it writes
    pictures/           and what it drew
    outcome.json        all that its evaluation gave
    outcome-NAME.json   and all that its evaluation on the further test set NAME gave, with
                        outputs-NAME.txt and pictures-NAME/; these may be added later
    result.json         figures; once it is there the run is finished
    SHA256SUMS          of the files that a mere look does not show to be damaged; checkpoint-N/,
                        model/ and tokenizer/ have their own
    .lock               while a process is at work here: which, on which computer
"""
