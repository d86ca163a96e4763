"""The playground: a network that trains in the page, in the number formats that one chooses."""
