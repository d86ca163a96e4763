"""What the widgets that train live share: controller, frames, buttons."""
