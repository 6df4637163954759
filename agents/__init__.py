"""An application on the bus: planner, writer and reviewer turn documents into a brief. See README.md here."""
