"""Labelled data, the parts that only training needs: the hub, multiple choice, made questions, checks of whole sets."""
