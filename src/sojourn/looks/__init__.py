"""How things look, the same wherever they are shown: numbers in words, colours of charts, the style of pages."""
