"""Answering: the drop-in, what a call asks for, the text of an answer, storing what was computed."""
