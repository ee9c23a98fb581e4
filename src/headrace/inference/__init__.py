"""Where the policy runs for actors. `local`: in the actor's own thread."""
