def save(path, text):
    with open(path, "w") as file:
        file.write(text)
