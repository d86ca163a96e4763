"""How did a training go that was consulted about? A picture of it."""
