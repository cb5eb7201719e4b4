"""Problems from any source, cleaned and measured, for training and evaluation.

source -> problem -> stages -> measured responses -> data set with a card. The evaluation uses all but the card.
"""
